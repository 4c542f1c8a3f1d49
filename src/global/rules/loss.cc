// Losses that compare two tensors element by element and then reduce.
#include "base/check.h"
#include "base/format.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/sum.h>

#include <algorithm>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

// Replaces a mean by a sum that is divided by the number of elements on all ranks.
void divide_by_all(Rule& rule, const RuleCall& call, std::size_t self, std::size_t reduction,
                   bool is_backward) {
  double count = 1;
  for (std::int64_t size : call.sizes(self)) count *= static_cast<double>(size);
  rule.finish = [=, sizes = call.sizes(self), arguments = call.arguments()](RulePlan& plan) {
    if (plan.local_operands[self] == sizes) return;
    plan.kernel = [=, run = plan.operation](Stack& stack) {
      std::int64_t kind = is_backward ? at::Reduction::Sum : at::Reduction::None;
      stack[stack.size() - arguments + reduction] = kind;
      run(stack);
      at::Tensor result = stack.back().toTensor();
      // The sum may overflow 16 bits even if the mean does not.
      at::ScalarType dtype = result.scalar_type();
      stack.back() = is_backward ? result.div_(count)
                                 : at::sum(result, at::toOpMathType(dtype)).div_(count).to(dtype);
    };
  };
}

// Returns the labels of an operand that is broadcast to the compared tensors, such as weights of
// classes.
std::vector<int> labels_of_broadcast(const std::vector<std::int64_t>& sizes,
                                     const std::vector<std::int64_t>& to,
                                     const std::vector<int>& labels) {
  std::vector<int> result(sizes.size(), Rule::whole);
  const std::size_t added = to.size() - std::min(to.size(), sizes.size());
  for (std::size_t dim = 0; dim < sizes.size() && added + dim < to.size(); ++dim)
    if (sizes[dim] == to[added + dim] && sizes[dim] != 1) result[dim] = labels[added + dim];
  return result;
}

// Compares operand `self` with the next one; other operands are sharded with them.
Rule loss(const RuleCall& call, std::size_t self, std::size_t reduction, bool is_backward) {
  check(
      call.sizes(self) == call.sizes(self + 1),
      "{} on global tensors: expected a target of the input's sizes [{}], found [{}]; expand() it",
      call.operation(), listed(call.sizes(self), ", "), listed(call.sizes(self + 1), ", "));
  Rule rule;
  std::vector<int> labels = labels_but(rule, call.sizes(self));
  for (std::size_t i = 0; i < call.size(); ++i) {
    bool is_alike = call.sizes(i) == call.sizes(self);
    rule.operands.push_back(
        is_alike ? labels : labels_of_broadcast(call.sizes(i), call.sizes(self), labels));
  }
  std::int64_t kind = call.argument(reduction).toInt();
  bool has_elements = is_backward || kind == at::Reduction::None;
  rule.results = {Rule::Result{}};
  if (has_elements) rule.results = {{call.sizes(self), labels}};
  if (is_backward) rule.linear = {{0}};
  if (kind == at::Reduction::Mean) divide_by_all(rule, call, self, reduction, is_backward);
  return rule;
}

}  // namespace

void add_loss_rules(RuleTable& table) {
  for (const char* name : {"mse_loss", "smooth_l1_loss", "huber_loss"}) {
    table[name] = [](const RuleCall& call) { return loss(call, 0, 2, false); };
    table[std::string(name) + "_backward"] = [](const RuleCall& call) {
      return loss(call, 1, 3, true);
    };
  }
  table["binary_cross_entropy"] = [](const RuleCall& call) { return loss(call, 0, 3, false); };
  table["binary_cross_entropy_with_logits"] = [](const RuleCall& call) {
    return loss(call, 0, 4, false);
  };
  table["binary_cross_entropy_backward"] = [](const RuleCall& call) {
    return loss(call, 1, 4, true);
  };
}

}  // namespace lockstep::global
