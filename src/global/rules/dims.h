// Helpers that read dims from operations' arguments.
#pragma once

#include "base/check.h"

#include <lockstep/global/rule.h>

#include <ATen/core/stack.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ranges>
#include <utility>
#include <vector>

namespace lockstep::global {

// Returns `dim` counted from the front of `dims` dims. A tensor without dims counts as having dim
// 0. Throws InvalidArgument if the dim does not exist.
[[nodiscard]] inline std::int64_t from_front(std::int64_t dim, std::int64_t dims) {
  const std::int64_t count = std::max<std::int64_t>(dims, 1);
  check(dim >= -count && dim < count, "expected a dim from {} to {} of a global tensor, found {}",
        -count, count - 1, dim);
  return dim < 0 ? dim + count : dim;
}

// Returns the dims in an argument that is a dim, a list of dims, or None. None and an empty list
// mean all dims.
[[nodiscard]] inline std::vector<std::int64_t> dims_in(const c10::IValue& value,
                                                       std::int64_t dims) {
  std::vector<std::int64_t> all;
  if (value.isInt()) {
    all = {from_front(value.toInt(), dims)};
  } else if (value.isList()) {
    for (std::int64_t dim : value.toIntVector()) all.push_back(from_front(dim, dims));
  }
  if (all.empty() && !value.isInt())
    for (std::int64_t dim = 0; dim < dims; ++dim) all.push_back(dim);
  return all;
}

// Returns true for an empty list of dims, which means no dims for some operations.
[[nodiscard]] inline bool is_empty_list(const c10::IValue& value) {
  return value.isList() && value.toListRef().empty();
}

// Returns true for an out= tensor. Operations in place write their first argument.
[[nodiscard]] inline bool is_out(const RuleOperand& operand) {
  return operand.written && operand.argument > 0;
}

[[nodiscard]] inline bool has_dim(const std::vector<std::int64_t>& dims, std::size_t dim) {
  return std::ranges::find(dims, static_cast<std::int64_t>(dim)) != dims.end();
}

// Returns a label for each dim of an operand, except those in `whole`.
[[nodiscard]] inline std::vector<int> labels_but(Rule& rule, const std::vector<std::int64_t>& sizes,
                                                 const std::vector<std::int64_t>& whole = {}) {
  std::vector<int> labels;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    labels.push_back(has_dim(whole, dim) ? Rule::whole : rule.add());
  return labels;
}

// Returns a rule with one operand and results of the same sizes, in which the dims `whole` are not
// sharded.
[[nodiscard]] inline Rule same_sizes(const RuleCall& call, const std::vector<std::int64_t>& whole) {
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(0), whole);
  for (std::size_t i = 0; i < call.size(); ++i) {
    bool is_alike = call.sizes(i) == call.sizes(0);
    rule.operands.push_back(is_alike ? labels
                                     : std::vector<int>(call.sizes(i).size(), Rule::whole));
  }
  rule.results.assign(call.results(), {call.sizes(0), labels});
  return rule;
}

// Returns a rule whose result has some or all dims of the operand, possibly in another order.
// `from[i]` is the operand's dim that becomes result dim i, or -1 for a new dim of `sizes[i]`.
[[nodiscard]] inline Rule moved(const RuleCall& call, const std::vector<int>& labels,
                                const std::vector<int>& from,
                                const std::vector<std::int64_t>& sizes, Rule rule) {
  Rule::Result result{sizes, {}};
  for (int dim : from)
    result.dims.push_back(dim < 0 ? Rule::whole : labels[static_cast<std::size_t>(dim)]);
  rule.operands = {labels};
  for (std::size_t i = 1; i < call.size(); ++i)
    rule.operands.emplace_back(call.sizes(i).size(), Rule::whole);
  rule.results = {result};
  rule.linear = {{0}};
  rule.moves = true;
  return rule;
}

// Returns 0, 1, ..., dims - 1.
[[nodiscard]] inline std::vector<int> in_order(std::int64_t dims) {
  std::vector<int> order;
  for (int dim : std::views::iota(0, static_cast<int>(dims))) order.push_back(dim);
  return order;
}

// Makes arguments contiguous. Normalisation kernels assume dense inputs and dense saved tensors
// (the mean of each row), but a rank's part of a dense tensor may not be dense.
// `first` to `last` are operands; the tensor arguments are `offset` positions after them.
inline void make_dense(RulePlan& plan, std::size_t first, std::size_t last, std::size_t offset,
                       std::size_t arguments) {
  plan.kernel = [=, run = plan.kernel ? plan.kernel : plan.operation](torch::jit::Stack& stack) {
    for (std::size_t i = first + offset; i <= last + offset; ++i) {
      c10::IValue& value = stack[stack.size() - arguments + i];
      value = value.toTensor().contiguous();
    }
    run(stack);
  };
}

// Returns a rule that replicates all operands; it has no results yet.
[[nodiscard]] inline Rule all_whole(const RuleCall& call) {
  Rule rule;
  for (std::size_t i = 0; i < call.size(); ++i)
    rule.operands.emplace_back(call.sizes(i).size(), Rule::whole);
  return rule;
}

// Sets argument 1, the sizes of the result, to this rank's sizes.
inline void replace_sizes(Rule& rule) {
  rule.finish = [](RulePlan& plan) {
    plan.replaced.emplace_back(1, c10::IValue(plan.local_results[0]));
  };
}

// Replaces the `arguments` arguments on the stack by the result.
inline void give(torch::jit::Stack& stack, std::size_t arguments, c10::IValue result) {
  torch::jit::drop(stack, arguments);
  stack.push_back(std::move(result));
}

// Returns the mesh axes along which `placements` shard a dim.
[[nodiscard]] inline std::vector<int> axes_that_cut(const Placements& placements,
                                                    std::int64_t dim) {
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < placements.size(); ++axis)
    if (placements[axis].is_shard_of(dim)) axes.push_back(static_cast<int>(axis));
  return axes;
}

// Returns the placements of a tensor of one dim that is sharded as dim `dim` is.
[[nodiscard]] inline Placements placements_of_dim(Placements placements, std::int64_t dim) {
  for (Placement& one : placements)
    one = one.is_shard_of(dim) ? Placement(Shard(0, one.parts()).zigzag(one.is_zigzag()))
                               : Placement(Replicate());
  return placements;
}

// Returns the index of this rank's first element of a dim of `length` elements, given its
// placements_of_dim(); `length` if the rank has none.
[[nodiscard]] inline std::int64_t first_here(const RulePlan& plan, const Placements& of_dim,
                                             std::int64_t length) {
  const at::Tensor numbers = plan.part_of(at::arange(length), of_dim);
  return numbers.numel() == 0 ? length : numbers[0].item<std::int64_t>();
}

// Returns the Partial placements that an operand has on some axis.
[[nodiscard]] inline Placements partials_of(const RuleOperand& operand) {
  Placements all;
  for (Placement one : operand.placements)
    if (one.is_partial() && std::ranges::find(all, one) == all.end()) all.push_back(one);
  return all;
}

// For random operations: compares the generators of the ranks, and then does what `finish` sets in
// place of the operation. Defined in random.cc.
[[nodiscard]] std::function<void(RulePlan& plan)> compared(
    const RuleCall& call, std::function<void(RulePlan& plan)> finish = {});

}  // namespace lockstep::global
