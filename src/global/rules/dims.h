// Reading the dims of operations' arguments.
#pragma once

#include "base/check.h"

#include <lockstep/global/rule.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ranges>
#include <vector>

namespace lockstep::global {

// Counted from the front, of `dims` dims. A tensor without dims has a dim 0 for this. Throws
// InvalidArgument if there is no such dim.
[[nodiscard]] inline std::int64_t from_front(std::int64_t dim, std::int64_t dims) {
  const std::int64_t count = std::max<std::int64_t>(dims, 1);
  check(dim >= -count && dim < count, "expected a dim from {} to {} of a global tensor, found {}",
        -count, count - 1, dim);
  return dim < 0 ? dim + count : dim;
}

// Of an argument that is a dim, a list of dims, or nothing: then all. An empty list means all too.
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

[[nodiscard]] inline bool has_dim(const std::vector<std::int64_t>& dims, std::size_t dim) {
  return std::ranges::find(dims, static_cast<std::int64_t>(dim)) != dims.end();
}

// A label for each dim of an operand, but those of `whole`.
[[nodiscard]] inline std::vector<int> labels_but(Rule& rule, const std::vector<std::int64_t>& sizes,
                                                 const std::vector<std::int64_t>& whole = {}) {
  std::vector<int> labels;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    labels.push_back(has_dim(whole, dim) ? Rule::whole : rule.add());
  return labels;
}

// One operand and results of its sizes, of which `whole` dims are not cut.
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

// A result whose dims are those of the operand in another order, or some of them. `from[i]`: the
// operand's dim that is result dim i, or -1 for a new one of `sizes[i]`.
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

// 0, 1, ... of so many dims.
[[nodiscard]] inline std::vector<int> in_order(std::int64_t dims) {
  std::vector<int> order;
  for (int dim : std::views::iota(0, static_cast<int>(dims))) order.push_back(dim);
  return order;
}

// Kernels of normalisations read what they are given, and what another one saved (the mean of each
// row), as if it was dense, which a rank's part of a dense tensor need not be.
// `first` and `last` are operands, and the tensor arguments `offset` places behind these.
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

// The placement of an operand along each axis where it has one of these.
[[nodiscard]] inline Placements partials_of(const RuleOperand& operand) {
  Placements all;
  for (Placement one : operand.placements)
    if (one.is_partial() && std::ranges::find(all, one) == all.end()) all.push_back(one);
  return all;
}

// For operations that draw random numbers: compares the generators of the ranks, then does what
// `finish` puts in the place of the operation. In random.cc.
[[nodiscard]] std::function<void(RulePlan& plan)> compared(
    const RuleCall& call, std::function<void(RulePlan& plan)> finish = {});

}  // namespace lockstep::global
