// The gradient of an embedding table whose rows are sharded, as tensor parallelism shards a
// vocabulary.
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

bool cuts_rows(const Placements& placements) {
  return std::ranges::any_of(placements, [](Placement one) { return one.is_shard_of(0); });
}

// Replaces the `arguments` arguments on the stack by the result.
void give(Stack& stack, std::size_t arguments, at::Tensor result) {
  torch::jit::drop(stack, arguments);
  stack.emplace_back(std::move(result));
}

// Schema: grad [..., d], indices, num_weights, padding_idx, scale_grad_by_freq. Computes this
// rank's rows of a table whose rows are sharded.
Rule cut_embedding_backward(Rule rule, const RuleCall& call) {
  const std::int64_t table = call.argument(2).toInt();
  if (call.argument(4).toBool()) return rule;
  rule.is_gradient_of_table = true;
  rule.more.push_back({{Replicate(), Replicate()}, {Shard(0)}});
  rule.finish = [=](RulePlan& plan) {
    if (!cuts_rows(plan.results[0])) return;
    const std::int64_t own = plan.local_results[0][0];
    Placements placements = plan.results[0];
    for (Placement& one : placements)
      if (!one.is_shard_of(0)) one = Replicate();
    const at::Tensor rows = plan.part_of(at::arange(table), placements);
    const std::int64_t first = own == 0 ? table : rows[0].item<std::int64_t>();
    plan.kernel = [=, sizes = plan.local_results[0]](Stack& stack) {
      const auto values = torch::jit::last(stack, 5);
      const at::Tensor &gradient = values[0].toTensor(), &indices = values[1].toTensor();
      if (own == 0) return give(stack, 5, at::zeros(sizes, gradient.options()));
      at::Tensor here = indices - first;
      here.masked_fill_(
          here.lt(0).logical_or_(here.ge(own)).logical_or_(indices.eq(values[3].toInt())), -1);
      give(stack, 5, at::embedding_dense_backward(gradient.contiguous(), here, own, -1, false));
    };
  };
  return rule;
}

}  // namespace

void add_vocabulary_rules(RuleTable& table) {
  const char* name = "embedding_dense_backward";
  table[name] = [before = table.at(name)](const RuleCall& call) {
    return cut_embedding_backward(before(call), call);
  };
}

}  // namespace lockstep::global
