// Softmax along a dim. If the dim is sharded, ranks exchange the largest element and the sum of
// each row.
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <limits>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

// Returns the mesh axes that shard a dim of operand 0.
std::vector<int> axes_that_cut(const RulePlan& plan, std::int64_t dim) {
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < plan.operands[0].size(); ++axis)
    if (plan.operands[0][axis].is_shard_of(dim)) axes.push_back(static_cast<int>(axis));
  return axes;
}

// A softmax of rows that are split over several ranks.
struct SharedRows {
  std::int64_t dim;
  std::vector<int> axes;
  std::function<void(int, const at::Tensor&, Op)> all_reduce;

  void reduce(at::Tensor& row, Op op) const {
    row = row.contiguous();
    for (int axis : axes) all_reduce(axis, row, op);
  }
  [[nodiscard]] at::Tensor largest(const at::Tensor& x) const {
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = 1;
    at::Tensor most = x.size(dim) > 0
                          ? at::amax(x, {dim}, true)
                          : at::full(sizes, -std::numeric_limits<double>::infinity(), x.options());
    reduce(most, Op::max);
    return most;
  }
  [[nodiscard]] at::Tensor sum(const at::Tensor& x) const {
    at::Tensor sums = at::sum(x, {dim}, true);
    reduce(sums, Op::sum);
    return sums;
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& x, bool is_log) const {
    at::Tensor wide = x.to(at::toOpMathType(x.scalar_type()));
    at::Tensor shifted = wide - largest(wide);
    at::Tensor powers = shifted.exp();
    at::Tensor sums = sum(powers);
    return (is_log ? shifted.sub_(sums.log_()) : powers.div_(sums)).to(x.scalar_type());
  }
  [[nodiscard]] at::Tensor backward(const at::Tensor& gradient, const at::Tensor& output,
                                    bool is_log) const {
    auto wide = [](const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); };
    at::Tensor g = wide(gradient), y = wide(output);
    at::Tensor result = is_log ? g - y.exp() * sum(g) : y * (g - sum(g * y));
    return result.to(gradient.scalar_type());
  }
};

// Schema: self, dim, half_to_float; or grad, output, dim, dtype
Rule softmax(const RuleCall& call, bool is_log) {
  bool is_backward = call.size() == 2;
  std::vector<std::int64_t> dims = dims_in(call.argument(call.size()), call.dim(0));
  Rule rule = same_sizes(call, dims);
  if (is_backward) rule.linear = {{0}};
  if (call.dim(0) == 0) return rule;
  for (const RuleOperand& operand : call.operands())
    for (Placement one : operand.placements)
      if (one.is_shard_of(dims[0])) rule.more.push_back({Placements(call.size(), one), {one}});
  rule.finish = [=, dim = dims[0], arguments = call.arguments()](RulePlan& plan) {
    SharedRows rows{dim, axes_that_cut(plan, dim), plan.all_reduce};
    if (rows.axes.empty()) return;
    plan.kernel = [=](Stack& stack) {
      auto values = torch::jit::last(stack, arguments);
      at::Tensor first = values[0].toTensor();
      at::Tensor result = is_backward ? rows.backward(first, values[1].toTensor(), is_log)
                                      : rows.forward(first, is_log);
      torch::jit::drop(stack, arguments);
      stack.emplace_back(std::move(result));
    };
  };
  return rule;
}

// Rule without exchange between ranks: the dim is not sharded.
Rule safe_softmax(const RuleCall& call) {
  return same_sizes(call, dims_in(call.argument(1), call.dim(0)));
}

}  // namespace

void add_softmax_rules(RuleTable& table) {
  table["_softmax"] =
      table["_softmax_backward_data"] = [](const RuleCall& call) { return softmax(call, false); };
  table["_log_softmax"] = table["_log_softmax_backward_data"] = [](const RuleCall& call) {
    return softmax(call, true);
  };
  table["_safe_softmax"] = safe_softmax;
}

}  // namespace lockstep::global
