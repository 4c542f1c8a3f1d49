#include "global/rules/dims.h"
#include "global/rules/tables.h"

#include <ATen/core/Reduction.h>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

// self, dim, half_to_float; or grad, output, dim, dtype
Rule softmax(const RuleCall& call) {
  std::size_t place = call.size();
  return same_sizes(call, dims_in(call.argument(place), call.dim(0)));
}

// Operands by argument: self [n, c, ...] or [c], target [n, ...], weight [c].
struct Losses {
  explicit Losses(const RuleCall& call, int self_argument)
      : self(static_cast<std::size_t>(call.operand_of(self_argument))),
        target(static_cast<std::size_t>(call.operand_of(self_argument + 1))),
        has_rows(call.dim(self) > 1) {
    for (std::size_t i = 0; i < call.size(); ++i)
      rule.operands.emplace_back(call.sizes(i).size(), Rule::whole);
    if (!has_rows) return;
    rows = rule.add({.empty = false});
    rule.operands[self][0] = rule.operands[target][0] = rows;
  }

  std::size_t self, target;
  bool has_rows;
  int rows = Rule::whole;
  Rule rule;
};

// The mean is over all ranks' weights: a sum, divided by the sum of these.
void divide_by_all_weights(Rule& rule, std::size_t arguments) {
  rule.finish = [arguments](RulePlan& plan) {
    std::vector<int> axes;
    for (std::size_t axis = 0; axis < plan.operands[0].size(); ++axis)
      if (plan.operands[0][axis].is_shard_of(0)) axes.push_back(static_cast<int>(axis));
    if (axes.empty()) return;
    plan.kernel = [=, run = plan.operation, all_reduce = plan.all_reduce](Stack& stack) {
      stack[stack.size() - arguments + 3] = static_cast<std::int64_t>(at::Reduction::Sum);
      run(stack);
      at::Tensor& sum = stack[stack.size() - 2].toTensor();
      at::Tensor weight = stack.back().toTensor().clone();
      for (int axis : axes) all_reduce(axis, weight, Op::sum);
      sum.div_(weight);
    };
  };
}

// self, target, weight?, reduction, ignore_index -> loss, total_weight
Rule nll_loss(const RuleCall& call) {
  Losses losses(call, 0);
  Rule& rule = losses.rule;
  std::int64_t reduction = call.argument(3).toInt();
  Rule::Result loss, weight;
  if (reduction == at::Reduction::None && losses.has_rows) {
    loss.sizes = call.sizes(losses.target);
    loss.dims = rule.operands[losses.target];
  }
  rule.results = {loss, weight};
  if (reduction == at::Reduction::Mean) divide_by_all_weights(rule, call.arguments());
  return rule;
}

// grad_output, self, target, weight?, reduction, ignore_index, total_weight: a mean is divided by
// the weight of all rows, which it is given.
Rule nll_loss_backward(const RuleCall& call) {
  Losses losses(call, 1);
  Rule& rule = losses.rule;
  if (call.dim(0) > 0) rule.operands[0][0] = losses.rows;
  rule.results = {{call.sizes(losses.self), rule.operands[losses.self]}};
  rule.linear = {{0}};
  return rule;
}

}  // namespace

void add_softmax_rules(RuleTable& table) {
  table["_softmax"] = table["_log_softmax"] = table["_safe_softmax"] = softmax;
  auto backward = [](const RuleCall& call) {
    Rule rule = softmax(call);
    rule.linear = {{0}};
    return rule;
  };
  table["_softmax_backward_data"] = table["_log_softmax_backward_data"] = backward;
  table["nll_loss_forward"] = table["nll_loss2d_forward"] = nll_loss;
  table["nll_loss_backward"] = table["nll_loss2d_backward"] = nll_loss_backward;
}

}  // namespace lockstep::global
