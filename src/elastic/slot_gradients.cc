#include <lockstep/elastic/slot_gradients.h>

#include "base/check.h"
#include "elastic/slot_tree.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep {
namespace {

using layout::Range;

constexpr CallOptions slots_call{.tag = "slots"};

// The sum of a node of the tree, all slots of which are in `sums`, in order from number `next` on;
// it is left in the first of them.
at::Tensor sum_of(Range node, const std::vector<std::pair<Range, at::Tensor>>& sums,
                  std::size_t& next) {
  if (sums[next].first.begin == node.begin && sums[next].first.end == node.end)
    return sums[next++].second;
  const std::int64_t middle = split_of(node);
  at::Tensor left = sum_of({node.begin, middle}, sums, next);
  return left.add_(sum_of({middle, node.end}, sums, next));
}

double sum_of(Range node, std::span<const double> values) {
  if (node.end - node.begin == 1) return values[static_cast<std::size_t>(node.begin)];
  const std::int64_t middle = split_of(node);
  return sum_of({node.begin, middle}, values) + sum_of({middle, node.end}, values);
}

void check_parameters(const std::vector<at::Tensor>& parameters) {
  check(!parameters.empty(), "SlotGradients: expected parameters, found none");
  for (const at::Tensor& parameter : parameters)
    check(parameter.is_floating_point() &&
              parameter.scalar_type() == parameters.front().scalar_type() &&
              parameter.device() == parameters.front().device(),
          "SlotGradients: expected parameters of one floating-point dtype on one device, found {} "
          "and {}",
          parameters.front().toString(), parameter.toString());
}

}  // namespace

// Sums are flat: the gradients one after the other, and behind them one element a parameter: how
// many slots gave it a gradient.
struct SlotGradients::State {
  State(Group of, std::int64_t count, std::vector<at::Tensor> tensors)
      : group(std::move(of)),
        slots(count),
        parameters(std::move(tensors)),
        own(slots_of_rank(count, group.rank(), group.size())),
        next(own.begin) {
    for (const at::Tensor& parameter : parameters) elements += parameter.numel();
    length = elements + std::ssize(parameters);
  }

  [[nodiscard]] at::Tensor taken() const {
    at::Tensor flat = at::zeros({length}, parameters.front().options().requires_grad(false));
    std::int64_t begin = 0, flag = elements;
    for (const at::Tensor& parameter : parameters) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined()) {
        check(!gradient.is_sparse(), "SlotGradients: expected dense gradients, found a sparse one");
        flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()).copy_(gradient);
        flat.narrow(0, flag, 1).fill_(1);
      }
      gradient = at::Tensor();
      begin += parameter.numel();
      ++flag;
    }
    return flat;
  }

  void push(std::int64_t slot, at::Tensor sum) {
    Range node{slot, slot + 1};
    while (!sums.empty() && is_node(slots, {sums.back().first.begin, node.end})) {
      node.begin = sums.back().first.begin;
      sum = sums.back().second.add_(sum);
      sums.pop_back();
    }
    sums.emplace_back(node, std::move(sum));
  }

  // The elements of the sums that rank `rank` adds up.
  [[nodiscard]] Range chunk(int rank) const {
    return {length * rank / group.size(), length * (rank + 1) / group.size()};
  }
  [[nodiscard]] std::vector<Range> nodes_of(int rank) const {
    return nodes_within(slots, slots_of_rank(slots, rank, group.size()));
  }

  // All ranks' sums of this rank's chunk.
  [[nodiscard]] std::vector<std::pair<Range, at::Tensor>> exchanged() {
    std::vector<std::int64_t> outgoing, incoming;
    std::vector<at::Tensor> pieces;
    std::vector<Range> nodes;
    const Range mine = chunk(group.rank());
    const std::int64_t width = mine.end - mine.begin;
    for (int rank = 0; rank < group.size(); ++rank) {
      const Range part = chunk(rank);
      outgoing.push_back((part.end - part.begin) * std::ssize(sums));
      for (const auto& [node, sum] : sums)
        pieces.push_back(sum.narrow(0, part.begin, part.end - part.begin));
      const std::vector<Range> theirs = nodes_of(rank);
      incoming.push_back(width * std::ssize(theirs));
      nodes.insert(nodes.end(), theirs.begin(), theirs.end());
    }
    const at::TensorOptions options = parameters.front().options().requires_grad(false);
    at::Tensor input = pieces.empty() ? at::empty({0}, options) : at::cat(pieces);
    at::Tensor output = at::empty({width * std::ssize(nodes)}, options);
    group.all_to_all(output, input, incoming, outgoing, slots_call).wait();
    std::vector<std::pair<Range, at::Tensor>> all;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      all.emplace_back(nodes[i], output.narrow(0, static_cast<std::int64_t>(i) * width, width));
    return all;
  }

  [[nodiscard]] at::Tensor reduced(double divisor) {
    if (group.size() == 1) {
      std::size_t first = 0;
      at::Tensor sum = sum_of({0, slots}, sums, first);
      sum.narrow(0, 0, elements).div_(divisor);
      return sum;
    }
    const auto all = exchanged();
    std::size_t first = 0;
    at::Tensor own_sum = sum_of({0, slots}, all, first);
    const Range mine = chunk(group.rank());
    if (mine.begin < elements)
      own_sum.narrow(0, 0, std::min(mine.end, elements) - mine.begin).div_(divisor);
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < group.size(); ++rank)
      counts.push_back(chunk(rank).end - chunk(rank).begin);
    at::Tensor whole = at::empty({length}, own_sum.options());
    group.all_gather(whole, own_sum.contiguous(), counts, slots_call).wait();
    return whole;
  }

  Group group;
  const std::int64_t slots;
  const std::vector<at::Tensor> parameters;
  const Range own;
  std::int64_t elements = 0, length = 0;
  std::int64_t next;                               // slot that is taken next
  std::vector<std::pair<Range, at::Tensor>> sums;  // of the largest nodes so far
};

SlotGradients::SlotGradients(Group group, std::int64_t slots, std::vector<at::Tensor> parameters) {
  check(slots > 0, "SlotGradients: expected at least one slot, found {}", slots);
  check_parameters(parameters);
  state_ = std::make_unique<State>(std::move(group), slots, std::move(parameters));
}

SlotGradients::~SlotGradients() = default;

std::int64_t SlotGradients::begin() const { return state_->own.begin; }
std::int64_t SlotGradients::end() const { return state_->own.end; }

void SlotGradients::take(std::int64_t slot) {
  at::NoGradGuard no_gradients;
  check(slot == state_->next && slot < state_->own.end,
        "SlotGradients::take: expected slot {} of {} to {}, found {}", state_->next,
        state_->own.begin, state_->own.end - 1, slot);
  state_->push(slot, state_->taken());
  ++state_->next;
}

void SlotGradients::reduce(double divisor) {
  at::NoGradGuard no_gradients;
  State& state = *state_;
  check(state.next == state.own.end,
        "SlotGradients::reduce: expected all slots from {} to {} to be taken, found {} of them",
        state.own.begin, state.own.end - 1, state.next - state.own.begin);
  const at::Tensor sum = state.reduced(divisor);
  reset();
  const at::Tensor given = sum.narrow(0, state.elements, std::ssize(state.parameters)).cpu();
  std::int64_t begin = 0, flag = 0;
  for (const at::Tensor& parameter : state.parameters) {
    const std::int64_t count = parameter.numel();
    const bool is_given = given[flag++].item<double>() > 0;
    parameter.mutable_grad() =
        is_given ? sum.narrow(0, begin, count).view(parameter.sizes()) : at::Tensor();
    begin += count;
  }
}

std::vector<double> SlotGradients::gather(std::span<const double> own) {
  State& state = *state_;
  check(std::ssize(own) == state.own.end - state.own.begin,
        "SlotGradients::gather: expected {} values, found {}", state.own.end - state.own.begin,
        own.size());
  std::vector<double> all(static_cast<std::size_t>(state.slots));
  std::ranges::copy(own, all.begin() + state.own.begin);
  // Zeros of the other ranks change no value.
  state.group.all_reduce(at::from_blob(all.data(), {state.slots}, at::kDouble), Op::sum, slots_call)
      .wait();
  return all;
}

void SlotGradients::reset() {
  state_->sums.clear();
  state_->next = state_->own.begin;
}

double tree_sum(std::span<const double> values) {
  return values.empty() ? 0 : sum_of({0, std::ssize(values)}, values);
}

}  // namespace lockstep
