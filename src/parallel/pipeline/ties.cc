#include "parallel/pipeline/ties.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/module/named_parameters.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <map>
#include <utility>

namespace lockstep::pipeline {
namespace {

// Returns a number that is equal on ranks with the same part; 0 if there is no part.
std::int64_t fingerprint_of(const std::vector<Part>& parts) {
  std::uint64_t all = 0;
  for (const Part& part : parts) {
    std::vector<std::int64_t> numbers = part.slice.sizes;
    numbers.insert(numbers.end(), part.slice.box.offsets.begin(), part.slice.box.offsets.end());
    numbers.insert(numbers.end(), part.slice.box.sizes.begin(), part.slice.box.sizes.end());
    numbers.insert(numbers.end(), {part.slice.range.begin, part.slice.range.end});
    for (const std::int64_t number : numbers)
      all = combine_fingerprints(all, static_cast<std::uint64_t>(number));
  }
  return static_cast<std::int64_t>(all);
}

// Memory for the values of a part, row-major.
at::Tensor memory_for(const at::Tensor& part) {
  return at::empty(part.sizes(), at::TensorOptions(part.scalar_type()).device(part.device()));
}

at::Tensor plain_values(const at::Tensor& part) { return memory_for(part).copy_(part.detach()); }

}  // namespace

Ties::Ties(const std::vector<Stage>& stages, const std::vector<int>& ranks, int own_rank)
    : own_rank_(own_rank) {
  struct Found {
    std::vector<std::string> names;
    std::vector<int> ranks;
  };
  std::vector<Found> found;
  std::map<const at::TensorImpl*, std::size_t> places;
  const auto add = [](auto& list, const auto& one) {
    if (std::ranges::find(list, one) == list.end()) list.push_back(one);
  };
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (const NamedParameter& parameter : unique_parameters(*stages[stage].module)) {
      const auto [place, is_new] =
          places.emplace(parameter.tensor.unsafeGetTensorImpl(), found.size());
      if (is_new) found.emplace_back();
      Found& one = found[place->second];
      add(one.names, parameter.name);
      for (const std::string& alias : parameter.aliases) add(one.names, alias);
      add(one.ranks, ranks[stage]);
    }
  for (Found& one : found) {
    if (one.ranks.size() == 1) continue;
    const bool is_here = std::ranges::find(one.ranks, own_rank) != one.ranks.end();
    ties_.push_back({.name = one.names.front(),
                     .names = std::move(one.names),
                     .is_here = is_here,
                     .owner = one.ranks.front(),
                     .others = {one.ranks.begin() + 1, one.ranks.end()}});
  }
}

bool Ties::is_of(const Tie& tie, const Part& part) {
  const auto is_name = [&](const std::string& name) {
    return std::ranges::find(tie.names, name) != tie.names.end();
  };
  return is_name(part.name) || std::ranges::any_of(part.aliases, is_name);
}

void Ties::take_parts(const std::vector<Part>& parameters, Group& group,
                      std::optional<Duration> timeout) {
  if (ties_.empty()) return;
  std::vector<std::int64_t> own(ties_.size());
  for (std::size_t i = 0; i < ties_.size(); ++i) {
    Tie& tie = ties_[i];
    if (!tie.is_here) continue;
    std::ranges::copy_if(parameters, std::back_inserter(tie.parts),
                         [&](const Part& part) { return is_of(tie, part); });
    own[i] = fingerprint_of(tie.parts);
  }
  const auto all = modules::numbers_of_all(group, std::move(own),
                                           {.tag = "parts of tied weights", .timeout = timeout});
  const auto number_of = [&](int rank, std::size_t tie) {
    return all[static_cast<std::size_t>(rank) * ties_.size() + tie];
  };
  for (std::size_t i = 0; i < ties_.size(); ++i)
    for (const int other : ties_[i].others)
      check(number_of(other, i) == number_of(ties_[i].owner, i),
            "Pipeline: {} is tied to stages of other ranks: expected handles that divide it "
            "alike on ranks {} and {}, found others; make its module a unit of its own in both",
            ties_[i].name, ties_[i].owner, other);
}

bool Ties::is_elsewhere(const Part& parameter) const {
  return std::ranges::any_of(
      ties_, [&](const Tie& tie) { return tie.owner != own_rank_ && is_of(tie, parameter); });
}

void Ties::add_directions(Directions& directions) const {
  for (const Tie& tie : ties_)
    for (const int other : tie.others) {
      directions.insert({tie.owner, other});
      directions.insert({other, tie.owner});
    }
}

template <typename Body>
void Ties::each_pair(Body body) {
  for (Tie& tie : ties_)
    for (const int other : tie.others)
      if (tie.owner == own_rank_ || other == own_rank_)
        for (const Part& part : tie.parts) body(tie, part.tensor, other);
}

void Ties::send_values(Group& group, std::optional<Duration> timeout) {
  at::NoGradGuard no_grad;
  std::vector<Work> works;
  std::vector<std::pair<at::Tensor, at::Tensor>> received;  // a part, and what it gets
  each_pair([&](const Tie& tie, const at::Tensor& part, int other) {
    const std::string tag = "values of " + tie.name;
    const CallOptions call{.tag = tag, .timeout = timeout};
    const bool is_plain = dispatch::part_of(part) == nullptr;
    // Writes to variable_data() leave the parameter's version alone: to data parallelism
    // (parallel/write_watch.h), the exchange is no write of forward().
    const at::Tensor own = is_plain ? part.variable_data() : part.detach();
    if (tie.owner == own_rank_) {
      works.push_back(group.send(is_plain ? own.contiguous() : plain_values(part), other, call));
      return;
    }
    // contiguous() copies transposed memory and returns other memory as it is. A part is received
    // into separate memory: its owner notices only writes by operations.
    received.emplace_back(own, is_plain ? own.contiguous() : memory_for(part));
    works.push_back(group.recv(received.back().second, tie.owner, call));
  });
  for (Work& work : works) work.wait();
  for (auto& [part, values] : received)
    if (!part.is_same(values)) part.copy_(values);
}

void Ties::check_dense() const {
  for (const Tie& tie : ties_)
    for (const Part& part : tie.parts)
      check(!part.tensor.grad().defined() || part.tensor.grad().layout() == at::kStrided,
            "pipeline: parameter {}: expected a dense gradient, since it is tied over ranks, found "
            "a sparse one",
            tie.name);
}

void Ties::send_gradients(Group& group, std::optional<Duration> timeout) {
  at::NoGradGuard no_grad;
  check_dense();
  std::vector<Work> works;
  std::vector<std::pair<at::Tensor, at::Tensor>> received;  // a part, and what it gets
  each_pair([&](const Tie& tie, const at::Tensor& part, int other) {
    const std::string tag = "gradient of " + tie.name;
    const CallOptions call{.tag = tag, .timeout = timeout};
    if (tie.owner == own_rank_) {
      received.emplace_back(part, memory_for(part));
      works.push_back(group.recv(received.back().second, other, call));
      return;
    }
    const at::Tensor sent =
        dispatch::has_gradient(part) ? plain_values(part.grad()) : memory_for(part).zero_();
    works.push_back(group.send(sent, tie.owner, call));
  });
  for (Work& work : works) work.wait();
  for (auto& [part, gradient] : received) {
    if (!part.requires_grad()) continue;  // frozen: the others sent zeros
    at::Tensor& own = part.mutable_grad();
    own = dispatch::has_gradient(part) ? own.detach().add_(gradient) : gradient;
  }
  forget_gradients();
}

void Ties::drop_cleared(const std::function<bool(const at::Tensor& parameter)>& is_cleared,
                        Group& group, std::optional<Duration> timeout) {
  std::vector<Work> works;
  std::vector<std::pair<at::Tensor, at::Tensor>> received;  // a part, and whether it was cleared
  each_pair([&](const Tie& tie, const at::Tensor& part, int other) {
    const std::string tag = "zero_grad() of " + tie.name;
    const CallOptions call{.tag = tag, .timeout = timeout};
    if (tie.owner == own_rank_) {
      works.push_back(group.send(at::full({1}, is_cleared(part) ? 1 : 0, at::kLong), other, call));
      return;
    }
    received.emplace_back(part, at::empty({1}, at::kLong));
    works.push_back(group.recv(received.back().second, tie.owner, call));
  });
  for (Work& work : works) work.wait();
  for (auto& [part, cleared] : received)
    if (cleared.item<std::int64_t>() != 0) part.mutable_grad().reset();
}

void Ties::forget_gradients() {
  for (const Tie& tie : ties_)
    if (tie.owner != own_rank_)
      for (const Part& part : tie.parts) part.tensor.mutable_grad().reset();
}

}  // namespace lockstep::pipeline
