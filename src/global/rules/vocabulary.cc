// Losses on classes that are cut over ranks, as tensor parallelism cuts a vocabulary: the largest
// and the sum over all classes come by all_reduce, and no rank has all of a row.
#include "base/check.h"
#include "global/rules/dims.h"
#include "global/rules/tables.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <utility>

namespace lockstep::global {
namespace {

using torch::jit::Stack;
using AllReduce = std::function<void(int axis, const at::Tensor& tensor, Op op)>;

// Axes along which an operand is cut in `dim`.
std::vector<int> axes_of(const Placements& placements, std::int64_t dim) {
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < placements.size(); ++axis)
    if (placements[axis].is_shard_of(dim)) axes.push_back(static_cast<int>(axis));
  return axes;
}

void reduce(const AllReduce& all_reduce, const std::vector<int>& axes, const at::Tensor& tensor,
            Op op) {
  for (int axis : axes) all_reduce(axis, tensor, op);
}

bool is_cut(const RuleOperand& operand, std::int64_t dim) {
  return std::ranges::any_of(
      operand.placements, [&](Placement one) { return one.is_shard_of(dim) && one.parts() == 1; });
}

// Replaces the results of `arguments` arguments.
void give(Stack& stack, std::size_t arguments, std::vector<at::Tensor> results) {
  torch::jit::drop(stack, arguments);
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
}

// Where this rank's part of `length` elements begins that operand `dim` is cut into.
std::int64_t first_of(const RulePlan& plan, std::size_t operand, std::int64_t dim,
                      std::int64_t length) {
  Placements placements(plan.operands[operand].size());
  for (std::size_t axis = 0; axis < placements.size(); ++axis)
    if (plan.operands[operand][axis].is_shard_of(dim)) placements[axis] = Shard(0);
  const at::Tensor numbers = plan.part_of(at::arange(length), placements);
  return numbers.numel() == 0 ? length : numbers[0].item<std::int64_t>();
}

// Its kernel where an operand is cut in `dim`, and what the rule has otherwise.
template <typename MakeKernel>
void add_kernel(Rule& rule, std::size_t operand, std::int64_t dim, MakeKernel make) {
  rule.finish = [=, before = std::move(rule.finish)](RulePlan& plan) {
    const std::vector<int> axes = axes_of(plan.operands[operand], dim);
    if (!axes.empty()) {
      plan.kernel = make(plan, axes);
    } else if (before) {
      before(plan);
    }
  };
}

// self, dim, half_to_float
Rule cut_log_softmax(Rule rule, const RuleCall& call) {
  const std::int64_t dim = from_front(call.argument(1).toInt(), call.dim(0));
  if (!is_cut(call.operands()[0], dim)) return rule;
  const Placement classes = Shard(static_cast<int>(dim));
  rule.more.push_back({{classes}, {classes}});
  add_kernel(rule, 0, dim, [=](const RulePlan& plan, const std::vector<int>& axes) {
    return [=, all_reduce = plan.all_reduce](Stack& stack) {
      const auto values = torch::jit::last(stack, 3);
      const at::Tensor& self = values[0].toTensor();
      const bool widens = values[2].toBool();
      at::Tensor x = self.to(at::promote_types(self.scalar_type(), at::kFloat));
      std::vector<std::int64_t> one = x.sizes().vec();
      one[static_cast<std::size_t>(dim)] = 1;
      at::Tensor most = x.size(dim) == 0
                            ? at::full(one, -std::numeric_limits<double>::infinity(), x.options())
                            : at::amax(x, dim, /*keepdim=*/true).contiguous();
      reduce(all_reduce, axes, most, Op::max);
      x = x - most;
      at::Tensor sum = x.exp().sum(dim, /*keepdim=*/true).contiguous();
      reduce(all_reduce, axes, sum, Op::sum);
      x.sub_(sum.log_());
      give(stack, 3, {widens ? x : x.to(self.scalar_type())});
    };
  });
  return rule;
}

// grad, output, dim, input_dtype
Rule cut_log_softmax_backward(Rule rule, const RuleCall& call) {
  const std::int64_t dim = from_front(call.argument(2).toInt(), call.dim(1));
  if (!is_cut(call.operands()[1], dim)) return rule;
  const Placement classes = Shard(static_cast<int>(dim));
  rule.more.push_back({{classes, classes}, {classes}});
  add_kernel(rule, 1, dim, [=](const RulePlan& plan, const std::vector<int>& axes) {
    return [=, all_reduce = plan.all_reduce](Stack& stack) {
      const auto values = torch::jit::last(stack, 4);
      const at::Tensor &gradient = values[0].toTensor(), &output = values[1].toTensor();
      at::Tensor sum = gradient.sum(dim, /*keepdim=*/true).contiguous();
      reduce(all_reduce, axes, sum, Op::sum);
      at::Tensor result = output.exp().mul_(sum).neg_().add_(gradient);
      give(stack, 4, {result.to(static_cast<at::ScalarType>(values[3].toInt()))});
    };
  });
  return rule;
}

// Targets as this rank sees them: which are predicted at all, which lie in its classes, and where.
struct OwnTargets {
  OwnTargets(const at::Tensor& target, std::int64_t ignored, std::int64_t first, std::int64_t own,
             std::int64_t classes)
      : counted(target.ne(ignored)), place(target - first) {
    at::Tensor is_wrong = target.lt(0).logical_or_(target.ge(classes)).logical_and_(counted);
    check(!is_wrong.any().item<bool>(),
          "nll_loss: expected targets from 0 to {}, or {} to ignore one, found another",
          classes - 1, ignored);
    mine = place.ge(0).logical_and_(place.lt(own)).logical_and_(counted);
    place.masked_fill_(mine.logical_not(), 0);
  }
  // 0 where a target is ignored.
  [[nodiscard]] at::Tensor weights(const c10::IValue& of_classes, const at::Tensor& target,
                                   at::ScalarType dtype) const {
    if (!of_classes.isTensor() || !of_classes.toTensor().defined()) return counted.to(dtype);
    const at::Tensor known = target.masked_fill(counted.logical_not(), 0);
    return of_classes.toTensor().index_select(0, known).mul_(counted);
  }

  at::Tensor counted, place, mine;
};

Placements replicated_but(const RuleCall& call, std::size_t operand, Placement placement) {
  Placements all(call.size());
  all[operand] = placement;
  return all;
}

// self [n, c], target [n], weight [c]?, reduction, ignore_index -> loss, total_weight
Rule cut_nll_loss(Rule rule, const RuleCall& call) {
  if (call.dim(0) != 2 || !is_cut(call.operands()[0], 1)) return rule;
  rule.more.push_back({replicated_but(call, 0, Shard(1)), {Partial(), Replicate()}});
  const std::int64_t classes = call.sizes(0)[1];
  add_kernel(rule, 0, 1, [=](const RulePlan& plan, const std::vector<int>&) {
    const std::vector<int> rows = axes_of(plan.operands[0], 0);
    const std::int64_t first = first_of(plan, 0, 1, classes);
    return [=, all_reduce = plan.all_reduce](Stack& stack) {
      const auto values = torch::jit::last(stack, 5);
      const at::Tensor &self = values[0].toTensor(), &target = values[1].toTensor();
      const std::int64_t reduction = values[3].toInt(), own = self.size(1);
      const OwnTargets targets(target, values[4].toInt(), first, own, classes);
      const at::Tensor weights = targets.weights(values[2], target, self.scalar_type());
      at::Tensor loss = at::zeros_like(weights);
      if (own > 0)
        loss = self.gather(1, targets.place.unsqueeze(1)).squeeze(1).neg_().mul_(weights);
      loss.masked_fill_(targets.mine.logical_not(), 0);
      at::Tensor total = weights.sum();
      if (reduction != at::Reduction::None) loss = loss.sum();
      if (reduction == at::Reduction::Mean) {
        at::Tensor all = total.clone();
        reduce(all_reduce, rows, all, Op::sum);
        loss.div_(all);
      }
      give(stack, 5, {loss, total});
    };
  });
  return rule;
}

// grad, self [n, c], target [n], weight [c]?, reduction, ignore_index, total_weight
Rule cut_nll_loss_backward(Rule rule, const RuleCall& call) {
  if (call.dim(1) != 2 || !is_cut(call.operands()[1], 1)) return rule;
  rule.more.push_back({replicated_but(call, 1, Shard(1)), {Shard(1)}});
  const std::int64_t classes = call.sizes(1)[1];
  add_kernel(rule, 1, 1, [=](const RulePlan& plan, const std::vector<int>&) {
    const std::int64_t first = first_of(plan, 1, 1, classes);
    return [=](Stack& stack) {
      const auto values = torch::jit::last(stack, 7);
      const at::Tensor &self = values[1].toTensor(), &target = values[2].toTensor();
      const OwnTargets targets(target, values[5].toInt(), first, self.size(1), classes);
      at::Tensor each = targets.weights(values[3], target, self.scalar_type()).neg_();
      each = each * values[0].toTensor();
      if (values[4].toInt() == at::Reduction::Mean) each.div_(values[6].toTensor());
      each.masked_fill_(targets.mine.logical_not(), 0);
      at::Tensor result = at::zeros_like(self, at::MemoryFormat::Contiguous);
      if (self.size(1) > 0) result.scatter_(1, targets.place.unsqueeze(1), each.unsqueeze(1));
      give(stack, 7, {result});
    };
  });
  return rule;
}

// grad [..., d], indices, num_weights, padding_idx, scale_grad_by_freq: the rows that this rank has
// of a table whose rows are cut.
Rule cut_embedding_backward(Rule rule, const RuleCall& call) {
  const std::int64_t table = call.argument(2).toInt();
  if (call.argument(4).toBool()) return rule;
  rule.is_gradient_of_table = true;
  rule.more.push_back({{Replicate(), Replicate()}, {Shard(0)}});
  rule.finish = [=](RulePlan& plan) {
    if (axes_of(plan.results[0], 0).empty()) return;
    const std::int64_t own = plan.local_results[0][0];
    Placements placements = plan.results[0];
    for (Placement& one : placements)
      if (!one.is_shard_of(0)) one = Replicate();
    const at::Tensor rows = plan.part_of(at::arange(table), placements);
    const std::int64_t first = own == 0 ? table : rows[0].item<std::int64_t>();
    plan.kernel = [=, sizes = plan.local_results[0]](Stack& stack) {
      const auto values = torch::jit::last(stack, 5);
      const at::Tensor &gradient = values[0].toTensor(), &indices = values[1].toTensor();
      if (own == 0) return give(stack, 5, {at::zeros(sizes, gradient.options())});
      at::Tensor here = indices - first;
      here.masked_fill_(
          here.lt(0).logical_or_(here.ge(own)).logical_or_(indices.eq(values[3].toInt())), -1);
      give(stack, 5, {at::embedding_dense_backward(gradient.contiguous(), here, own, -1, false)});
    };
  };
  return rule;
}

}  // namespace

void add_vocabulary_rules(RuleTable& table) {
  auto extend = [&](const char* name, Rule (*more)(Rule, const RuleCall&)) {
    table[name] = [before = table.at(name), more](const RuleCall& call) {
      return more(before(call), call);
    };
  };
  extend("_log_softmax", cut_log_softmax);
  extend("_log_softmax_backward_data", cut_log_softmax_backward);
  extend("nll_loss_forward", cut_nll_loss);
  extend("nll_loss_backward", cut_nll_loss_backward);
  extend("embedding_dense_backward", cut_embedding_backward);
}

}  // namespace lockstep::global
