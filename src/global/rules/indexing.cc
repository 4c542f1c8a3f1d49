#include "base/check.h"
#include "base/format.h"
#include "global/checks.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <lockstep/layout/tensor_slice.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace lockstep::global {
namespace {

using torch::jit::Stack;

// Looks up rows in this rank's part of a table; indices of rows on other ranks give zeros.
at::Tensor rows_of_part(const at::Tensor& weight, const at::Tensor& indices, std::int64_t first) {
  at::Tensor here = indices - first;
  at::Tensor elsewhere = (here < 0).logical_or_(here >= weight.size(0));
  if (weight.size(0) == 0) {
    std::vector<std::int64_t> sizes = indices.sizes().vec();
    sizes.push_back(weight.size(1));
    return weight.new_zeros(sizes);
  }
  here.masked_fill_(elsewhere, 0);
  return at::embedding(weight, here).masked_fill_(elsewhere.unsqueeze(-1), 0);
}

// Throws on all ranks; otherwise only the ranks that have indices would fail.
void check_dim_has_elements(const RuleCall& call, std::int64_t length, std::size_t index) {
  check(length > 0 || layout::numel_of(call.sizes(index)) == 0,
        "{}: expected no indices of a dim without elements, found sizes [{}]", call.operation(),
        listed(call.sizes(index), ", "));
}

// Schema: weight [v, d], indices, padding_idx, scale_grad_by_freq, sparse
Rule embedding(const RuleCall& call) {
  check(call.dim(0) == 2, "{}: expected a table of two dims, found {}", call.operation(),
        call.dim(0));
  check_dim_has_elements(call, call.sizes(0)[0], 1);
  Rule rule = all_whole(call);
  rule.operands[1] = labels_but(rule, call.sizes(1));
  int width = rule.add();
  rule.operands[0][1] = width;
  Rule::Result result{call.sizes(1), rule.operands[1]};
  result.sizes.push_back(call.sizes(0)[1]);
  result.dims.push_back(width);
  rule.results = {result};
  rule.linear = {{0}};
  rule.more.push_back({{Shard(0), Replicate()}, {Partial()}});
  rule.finish = [arguments = call.arguments(), rows = call.sizes(0)[0]](RulePlan& plan) {
    if (plan.local_operands[0][0] == rows) return;
    std::int64_t first = first_here(plan, placements_of_dim(plan.operands[0], 0), rows);
    std::string expected =
        formatted("aten::embedding: expected indices of a table of {} rows", rows);
    plan.kernel = [=](Stack& stack) {
      auto values = torch::jit::last(stack, arguments);
      check_range(values[1].toTensor(), rows, expected);
      give(stack, arguments, rows_of_part(values[0].toTensor(), values[1].toTensor(), first));
    };
  };
  return rule;
}

// Schema: grad [..., d], indices, num_weights, padding_idx, scale_grad_by_freq. Counting the uses
// of a row needs all indices. Otherwise, a rank may compute its rows of a table whose rows are
// sharded.
Rule embedding_backward(const RuleCall& call) {
  Rule rule = all_whole(call);
  const std::int64_t table = call.argument(2).toInt();
  const bool counts = call.argument(4).toBool();
  if (!counts) rule.operands[1] = labels_but(rule, call.sizes(1));
  rule.operands[0] = rule.operands[1];
  int width = rule.add();
  rule.operands[0].push_back(width);
  rule.results = {{{table, call.sizes(0).back()}, {Rule::whole, width}}};
  rule.linear = {{0}};
  if (counts) return rule;
  rule.is_gradient_of_table = true;
  rule.more.push_back({{Replicate(), Replicate()}, {Shard(0)}});
  rule.finish = [=](RulePlan& plan) {
    if (axes_that_cut(plan.results[0], 0).empty()) return;
    const std::int64_t own = plan.local_results[0][0];
    const std::int64_t first = first_here(plan, placements_of_dim(plan.results[0], 0), table);
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

// Schema: self, dim, index
Rule index_select(const RuleCall& call) {
  std::int64_t dim = from_front(call.argument(1).toInt(), call.dim(0));
  Rule rule = all_whole(call);
  if (call.dim(0) == 0) {
    rule.results = {{{}, {}}};
    return rule;
  }
  check_dim_has_elements(call, call.sizes(0)[static_cast<std::size_t>(dim)], 1);
  rule.operands[0] = labels_but(rule, call.sizes(0), {dim});
  Rule::Result result{call.sizes(0), rule.operands[0]};
  int index = call.dim(1) == 0 ? Rule::whole : rule.add();
  if (call.dim(1) > 0) rule.operands[1][0] = index;
  result.sizes[static_cast<std::size_t>(dim)] = call.dim(1) == 0 ? 1 : call.sizes(1)[0];
  result.dims[static_cast<std::size_t>(dim)] = index;
  rule.results = {result};
  rule.linear = {{0}};
  return rule;
}

// Schema: self, dim, index, ... Dims other than `dim` that have the same length in all operands are
// sharded together.
Rule aligned(const RuleCall& call, std::size_t sizes_from) {
  std::int64_t dim = from_front(call.argument(1).toInt(), call.dim(0));
  if (call.dim(0) > 0)
    check_dim_has_elements(call, call.sizes(0)[static_cast<std::size_t>(dim)], 1);
  Rule rule = all_whole(call);
  for (std::size_t i = 0; i < call.sizes(0).size(); ++i) {
    bool is_alike = static_cast<std::int64_t>(i) != dim;
    for (std::size_t operand = 0; operand < call.size(); ++operand)
      is_alike =
          is_alike && (call.dim(operand) == call.dim(0) ? call.sizes(operand)[i] == call.sizes(0)[i]
                                                        : call.dim(operand) == 0);
    if (!is_alike) continue;
    int label = rule.add();
    for (auto& dims : rule.operands)
      if (!dims.empty()) dims[i] = label;
  }
  rule.results = {{call.sizes(sizes_from), rule.operands[sizes_from]}};
  return rule;
}

// Schema: self, indices. Dims without an index keep their shards.
Rule index(const RuleCall& call) {
  Rule rule = all_whole(call);
  auto indices = call.argument(1).toListRef();
  std::vector<std::int64_t> shape, places;
  for (std::size_t place = 0; place < indices.size(); ++place) {
    int operand = call.operand_of(1, static_cast<int>(place));
    if (operand < 0) continue;
    const RuleOperand& one = call.operands()[static_cast<std::size_t>(operand)];
    check(one.dtype == at::kLong || one.dtype == at::kInt,
          "{}: expected integer indices, found a mask, for which the size of the result depends on "
          "values; use where(), masked_fill() or masked_select()",
          call.operation());
    places.push_back(static_cast<std::int64_t>(place));
    check_dim_has_elements(call, call.sizes(0).at(place), static_cast<std::size_t>(operand));
    if (one.sizes.size() > shape.size())
      shape.insert(shape.begin(), one.sizes.size() - shape.size(), 1);
    for (std::size_t i = 0; i < one.sizes.size(); ++i)
      if (std::int64_t& size = shape[shape.size() - one.sizes.size() + i]; size == 1)
        size = one.sizes[i];
  }
  rule.operands[0] = labels_but(rule, call.sizes(0), places);
  bool together = places.empty() || places.back() - places.front() + 1 == std::ssize(places);
  std::int64_t at = together && !places.empty() ? places.front() : 0;
  Rule::Result result;
  auto add_indexed = [&] {
    result.sizes.insert(result.sizes.end(), shape.begin(), shape.end());
    result.dims.insert(result.dims.end(), shape.size(), Rule::whole);
  };
  for (std::size_t dim = 0; dim <= call.sizes(0).size(); ++dim) {
    if (static_cast<std::int64_t>(dim) == at) add_indexed();
    if (dim == call.sizes(0).size() || has_dim(places, dim)) continue;
    result.sizes.push_back(call.sizes(0)[dim]);
    result.dims.push_back(rule.operands[0][dim]);
  }
  rule.results = {result};
  rule.linear = {{0}};
  return rule;
}

// Schema: self, index. The indices refer to all elements of self.
Rule take(const RuleCall& call) {
  Rule rule = all_whole(call);
  rule.operands[1] = labels_but(rule, call.sizes(1));
  rule.results = {{call.sizes(1), rule.operands[1]}};
  rule.linear = {{0}};
  return rule;
}

// Schema: grad, mask, sizes
Rule masked_scatter_backward(const RuleCall& call) {
  Rule rule = all_whole(call);
  std::vector<std::int64_t> sizes = call.argument(2).toIntVector();
  std::vector<int> whole(sizes.size(), Rule::whole);
  rule.results = {{std::move(sizes), std::move(whole)}};
  return rule;
}

// The result has the sizes of self, and nothing is sharded.
Rule whole_self(const RuleCall& call) {
  Rule rule = all_whole(call);
  rule.results = {{call.sizes(0), rule.operands[0]}};
  return rule;
}

}  // namespace

void add_indexing_rules(RuleTable& table) {
  table["embedding"] = embedding;
  table["embedding_dense_backward"] = embedding_backward;
  table["index_select"] = index_select;
  table["gather"] = [](const RuleCall& call) { return aligned(call, 1); };
  for (const char* name : {"scatter", "scatter_", "scatter_add", "scatter_add_"})
    table[name] = [](const RuleCall& call) { return aligned(call, 0); };
  table["index"] = index;
  for (const char* name :
       {"index_put", "index_put_", "_index_put_impl_", "index_add", "index_add_", "index_fill",
        "index_fill_", "index_copy", "index_copy_", "put_", "masked_scatter", "masked_scatter_"})
    table[name] = whole_self;
  table["masked_scatter_backward"] = masked_scatter_backward;
  table["take"] = take;
  // The sizes of these results depend on values: results are replicated.
  table["masked_select"] = table["nonzero"] = all_whole;
}

}  // namespace lockstep::global
