// The negative log-likelihood of classes. Rows may be sharded, and so may classes: a rank then
// looks up the targets that are among its own classes.
#include "base/format.h"
#include "global/range_check.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

constexpr std::int64_t ignored_here = -100;

// Operands by argument: self [n, c, ...] or [c], target [n, ...], weight [c]. Numbers for the
// reduction and the ignored target follow.
struct NllCall {
  NllCall(const RuleCall& call, int self_argument)
      : self(static_cast<std::size_t>(call.operand_of(self_argument))),
        target(static_cast<std::size_t>(call.operand_of(self_argument + 1))),
        first(static_cast<std::size_t>(self_argument)),
        arguments(call.arguments()),
        class_dim(call.dim(self) > 1 ? 1 : 0),
        classes(call.sizes(self)[class_dim]),
        reduction(call.argument(first + 3).toInt()),
        ignored(call.argument(first + 4).toInt()) {
    for (std::size_t i = 0; i < call.size(); ++i)
      rule.operands.emplace_back(call.sizes(i).size(), Rule::whole);
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
    Placements of_classes;
    for (std::size_t axis = 0; axis < plan.operands[call.self].size(); ++axis) {
      Placement one = plan.operands[call.self][axis];
      bool cuts_classes = one.is_shard_of(static_cast<std::int64_t>(call.class_dim));
      of_classes.push_back(cuts_classes ? Placement(Shard(0)) : Replicate());
      if (cuts_classes) class_axes.push_back(static_cast<int>(axis));
      if (!cuts_classes && one.is_shard()) row_axes.push_back(static_cast<int>(axis));
    }
    part = [whole_part = plan.part_of, of_classes](const at::Tensor& whole) {
      return whole_part(whole, of_classes);
    };
    at::Tensor numbers = part(at::arange(classes));
    begin = numbers.numel() == 0 ? classes : numbers[0].item<std::int64_t>();
  }

  [[nodiscard]] c10::IValue& argument(Stack& stack, std::size_t i) const {
    return stack[stack.size() - arguments + i];
  }

  // Converts targets to indices among this rank's classes, or to the ignored index, and selects the
  // weights of these classes.
  void look_here(Stack& stack) const {
    if (class_axes.empty()) return;
    at::Tensor target = argument(stack, first + 1).toTensor();
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
    torch::jit::drop(stack, arguments);
    stack.emplace_back(at::zeros(self.sizes(), self.options()));
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

void add_nll_loss_rules(RuleTable& table) {
  table["nll_loss_forward"] = table["nll_loss2d_forward"] = nll_loss;
  table["nll_loss_backward"] = table["nll_loss2d_backward"] = nll_loss_backward;
}

}  // namespace lockstep::global
