#include "parallel/pipeline/ties.h"

#include "base/check.h"

#include <lockstep/module/named_parameters.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <utility>

namespace lockstep::pipeline {

Ties::Ties(const std::vector<Stage>& stages, const std::vector<int>& ranks, int own_rank)
    : own_rank_(own_rank) {
  struct Found {
    NamedParameter parameter;
    std::vector<int> ranks;
  };
  std::vector<Found> found;
  std::map<const at::TensorImpl*, std::size_t> places;
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (NamedParameter& parameter : unique_parameters(*stages[stage].module)) {
      const auto [place, is_new] =
          places.emplace(parameter.tensor.unsafeGetTensorImpl(), found.size());
      if (is_new) found.push_back({std::move(parameter), {}});
      std::vector<int>& its_ranks = found[place->second].ranks;
      if (std::ranges::find(its_ranks, ranks[stage]) == its_ranks.end())
        its_ranks.push_back(ranks[stage]);
    }
  for (Found& one : found) {
    if (one.ranks.size() == 1) continue;
    const bool is_here = std::ranges::find(one.ranks, own_rank) != one.ranks.end();
    ties_.push_back({one.parameter.name,
                     is_here ? one.parameter.tensor : at::Tensor(),
                     one.ranks.front(),
                     {one.ranks.begin() + 1, one.ranks.end()}});
  }
}

bool Ties::has(const at::Tensor& parameter) const {
  return std::ranges::any_of(ties_, [&](const Tie& tie) { return tie.tensor.is_same(parameter); });
}

bool Ties::is_elsewhere(const at::Tensor& parameter) const {
  return std::ranges::any_of(ties_, [&](const Tie& tie) {
    return tie.owner != own_rank_ && tie.tensor.is_same(parameter);
  });
}

template <typename Body>
void Ties::each_pair(int own_rank, Body body) {
  for (Tie& tie : ties_)
    for (const int other : tie.others)
      if (tie.owner == own_rank || other == own_rank) body(tie, other);
}

void Ties::send_values(Group& group, std::optional<Duration> timeout) {
  at::NoGradGuard no_grad;
  std::vector<Work> works;
  std::vector<std::pair<at::Tensor, at::Tensor>> received;  // a parameter, and what it gets
  each_pair(own_rank_, [&](const Tie& tie, int other) {
    const std::string tag = "values of " + tie.name;
    const CallOptions call{.tag = tag, .timeout = timeout};
    const at::Tensor own = tie.tensor.detach();
    if (tie.owner == own_rank_) {
      works.push_back(group.send(own.contiguous(), other, call));
      return;
    }
    // Of transposed memory this is a copy, of other memory itself.
    received.emplace_back(own, own.contiguous());
    works.push_back(group.recv(received.back().second, tie.owner, call));
  });
  for (Work& work : works) work.wait();
  for (auto& [parameter, values] : received)
    if (!parameter.is_same(values)) parameter.copy_(values);
}

void Ties::check_dense() const {
  for (const Tie& tie : ties_) {
    if (!tie.tensor.defined() || !tie.tensor.grad().defined()) continue;
    check(tie.tensor.grad().layout() == at::kStrided,
          "pipeline: parameter {}: expected a dense gradient, since it is tied over ranks, found a "
          "sparse one",
          tie.name);
  }
}

void Ties::send_gradients(Group& group, std::optional<Duration> timeout) {
  at::NoGradGuard no_grad;
  check_dense();
  std::vector<Work> works;
  std::vector<std::pair<at::Tensor, at::Tensor>> received;  // a parameter, and what it gets
  each_pair(own_rank_, [&](const Tie& tie, int other) {
    const std::string tag = "gradient of " + tie.name;
    const CallOptions call{.tag = tag, .timeout = timeout};
    if (tie.owner == own_rank_) {
      at::Tensor gradient = at::empty_like(tie.tensor.detach(), at::MemoryFormat::Contiguous);
      works.push_back(group.recv(gradient, other, call));
      received.emplace_back(tie.tensor, std::move(gradient));
      return;
    }
    const at::Tensor& own = tie.tensor.grad();
    works.push_back(group.send(own.defined() ? own.detach().contiguous()
                                             : at::zeros_like(tie.tensor.detach()).contiguous(),
                               tie.owner, call));
  });
  for (Work& work : works) work.wait();
  for (auto& [parameter, gradient] : received) {
    at::Tensor& own = parameter.mutable_grad();
    own = own.defined() ? own.detach().add_(gradient) : gradient;
  }
  forget_gradients();
}

void Ties::forget_gradients() {
  for (const Tie& tie : ties_)
    if (tie.tensor.defined() && tie.owner != own_rank_) tie.tensor.mutable_grad().reset();
}

}  // namespace lockstep::pipeline
