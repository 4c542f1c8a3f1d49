// Losses that compare two tensors element by element and then reduce.

#include "base/check.h"
#include "base/format.h"
#include "global/checks.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

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

constexpr std::int64_t ignored_here = -100;

// Operands by argument: self [n, c, ...] or [c], target [n, ...], weight [c]. Numbers for the
// reduction and the ignored target follow.
struct NllCall {
  NllCall(const RuleCall& call, int self_argument)
      : rule(all_whole(call)),
        self(static_cast<std::size_t>(call.operand_of(self_argument))),
        target(static_cast<std::size_t>(call.operand_of(self_argument + 1))),
        first(static_cast<std::size_t>(self_argument)),
        arguments(call.arguments()),
        class_dim(call.dim(self) > 1 ? 1 : 0),
        classes(call.sizes(self)[class_dim]),
        reduction(call.argument(first + 3).toInt()),
        ignored(call.argument(first + 4).toInt()) {
    if (class_dim == 0) return;
    rows = rule.add({.empty = false});
    rule.operands[self][0] = rule.operands[target][0] = rows;
  }

  // Adds the choice that shards classes along an axis.
  void add_cut_classes(const RuleCall& call, Placements results) {
    Placement cut = Shard(static_cast<int>(class_dim));
    RuleChoice choice{Placements(call.size()), std::move(results)};
    choice.operands[self] = cut;
    rule.more.push_back(std::move(choice));
  }

  Rule rule;
  std::size_t self, target, first, arguments, class_dim;
  std::int64_t classes, reduction, ignored;
  int rows = Rule::whole;
};

// Data of one decision that a kernel needs.
struct NllPlan {
  NllPlan(const NllCall& call, const RulePlan& plan)
      : first(call.first),
        arguments(call.arguments),
        reduction(call.reduction),
        classes(call.classes),
        ignored(call.ignored),
        here(plan.local_operands[call.self][call.class_dim]),
        run(plan.operation),
        all_reduce(plan.all_reduce) {
    const Placements& cut = plan.operands[call.self];
    const auto dim = static_cast<std::int64_t>(call.class_dim);
    class_axes = axes_that_cut(cut, dim);
    if (dim == 1) row_axes = axes_that_cut(cut, 0);
    const Placements of_classes = placements_of_dim(cut, dim);
    begin = first_here(plan, of_classes, classes);
    part = [whole_part = plan.part_of, of_classes](const at::Tensor& whole) {
      return whole_part(whole, of_classes);
    };
  }

  [[nodiscard]] c10::IValue& argument(Stack& stack, std::size_t i) const {
    return stack[stack.size() - arguments + i];
  }

  // Converts targets to indices among this rank's classes, or to the ignored index, and selects the
  // weights of these classes.
  void look_here(Stack& stack) const {
    if (class_axes.empty()) return;
    // Targets may be bytes, which cannot hold the ignored index.
    at::Tensor target = argument(stack, first + 1).toTensor().to(at::kLong);
    at::Tensor counts = target.ne(ignored);
    check_range(at::where(counts, target, 0), classes,
                formatted("aten::nll_loss: expected a target below {}", classes));
    at::Tensor place = target - begin;
    counts.logical_and_(place.ge(0)).logical_and_(place.lt(here));
    argument(stack, first + 1) = place.masked_fill_(counts.logical_not_(), ignored_here);
    c10::IValue& weight = argument(stack, first + 2);
    if (weight.isTensor() && weight.toTensor().defined()) weight = part(weight.toTensor());
    argument(stack, first + 4) = ignored_here;
  }

  void forward(Stack& stack) const {
    bool is_mean = reduction == at::Reduction::Mean;
    at::Tensor self = argument(stack, 0).toTensor();
    at::ScalarType dtype = self.scalar_type(), wide = at::toOpMathType(dtype);
    std::vector<std::int64_t> of_rows = argument(stack, 1).toTensor().sizes().vec();
    look_here(stack);
    // The sum may overflow 16 bits even if the mean does not.
    argument(stack, 0) = self.to(wide);
    c10::IValue& weights = argument(stack, 2);
    if (weights.isTensor() && weights.toTensor().defined())
      weights = weights.toTensor().to(wide).contiguous();
    if (is_mean) argument(stack, 3) = static_cast<std::int64_t>(at::Reduction::Sum);
    if (here > 0) {
      run(stack);
    } else {
      torch::jit::drop(stack, arguments);
      bool has_rows = reduction == at::Reduction::None;
      stack.emplace_back(has_rows ? at::zeros(of_rows, self.options().dtype(wide))
                                  : at::zeros({}, self.options().dtype(wide)));
      stack.emplace_back(at::zeros({}, self.options().dtype(wide)));
    }
    at::Tensor weight = stack.back().toTensor().clone();
    for (int axis : class_axes) all_reduce(axis, weight, Op::sum);
    stack.back() = weight.to(dtype);
    at::Tensor loss = stack[stack.size() - 2].toTensor();
    if (is_mean) {
      weight = weight.clone();
      for (int axis : row_axes) all_reduce(axis, weight, Op::sum);
      loss.div_(weight);
    }
    stack[stack.size() - 2] = loss.to(dtype);
  }

  void backward(Stack& stack) const {
    look_here(stack);
    if (here > 0) return run(stack);
    at::Tensor self = argument(stack, 1).toTensor();
    give(stack, arguments, at::zeros(self.sizes(), self.options()));
  }

  std::size_t first, arguments;
  std::int64_t reduction, classes, ignored, here, begin = 0;
  std::vector<int> class_axes, row_axes;
  std::function<void(Stack&)> run;
  std::function<at::Tensor(const at::Tensor&)> part;
  std::function<void(int, const at::Tensor&, Op)> all_reduce;
};

// Schema: self, target, weight?, reduction, ignore_index -> loss, total_weight
Rule nll_loss(const RuleCall& call) {
  NllCall made(call, 0);
  Rule::Result loss, weight;
  if (made.reduction == at::Reduction::None && made.class_dim == 1) {
    loss.sizes = call.sizes(made.target);
    loss.dims = made.rule.operands[made.target];
  }
  made.rule.results = {loss, weight};
  made.add_cut_classes(call, {Partial(), Replicate()});
  Rule rule = made.rule;
  rule.finish = [made](RulePlan& plan) {
    NllPlan known(made, plan);
    bool is_mean_of_rows = made.reduction == at::Reduction::Mean && !known.row_axes.empty();
    if (known.class_axes.empty() && !is_mean_of_rows) return;
    plan.kernel = [known](Stack& stack) { known.forward(stack); };
  };
  return rule;
}

// Schema: grad_output, self, target, weight?, reduction, ignore_index, total_weight. A mean is
// divided by total_weight, the weight of all rows.
Rule nll_loss_backward(const RuleCall& call) {
  NllCall made(call, 1);
  if (call.dim(0) > 0) made.rule.operands[0][0] = made.rows;
  made.rule.results = {{call.sizes(made.self), made.rule.operands[made.self]}};
  made.rule.linear = {{0}};
  made.add_cut_classes(call, {Shard(static_cast<int>(made.class_dim))});
  Rule rule = made.rule;
  rule.finish = [made](RulePlan& plan) {
    NllPlan known(made, plan);
    if (known.class_axes.empty()) return;
    plan.kernel = [known](Stack& stack) { known.backward(stack); };
  };
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
  table["nll_loss_forward"] = table["nll_loss2d_forward"] = nll_loss;
  table["nll_loss_backward"] = table["nll_loss2d_backward"] = nll_loss_backward;
}

}  // namespace lockstep::global
