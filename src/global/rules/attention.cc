// Scaled dot-product attention: rows and heads may be cut, features not; tokens of queries, keys
// and values may be cut in the same way.
#include "global/ring_attention.h"
#include "global/rule_line.h"

#include <algorithm>

namespace lockstep::global {
namespace {

struct Attention {
  // `first` is the operand that is the query; keys and values follow it. Argument `mask` is
  // [tokens, tokens], or has rows and heads before these, or one element in place of them.
  Attention(const RuleCall& call, std::size_t first, int mask) {
    const std::vector<std::int64_t>& query = call.sizes(first);
    std::int64_t groups = call.sizes(first + 1)[1];
    int rows = rule.add({.empty = false});
    Rule::Label label{.empty = false};
    if (groups != query[1]) label.lengths = {query[1], groups};
    int head = rule.add(label);
    for (std::size_t i = 0; i < call.size(); ++i) {
      const std::vector<std::int64_t>& sizes = call.sizes(i);
      std::vector<int> dims(sizes.size(), Rule::whole);
      bool is_mask = call.operands()[i].argument == mask;
      bool has_rows = is_mask ? sizes.size() == 4 && sizes[0] == query[0] : sizes.size() > 2;
      bool has_heads = is_mask ? sizes.size() == 4 && sizes[1] == query[1] : sizes.size() > 2;
      if (has_rows) dims[0] = rows;
      if (has_heads) dims[1] = head;
      rule.operands.push_back(std::move(dims));
    }
  }

  Rule rule;
};

// As the kernel lays out its result: [rows, tokens, heads, features], seen as [rows, heads, ...].
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[3], sizes[1] * sizes[3], 1};
}

// The kernel reads features one after the other. LibTorch chooses it by the strides of the whole,
// and a rank's part may lie otherwise.
void lay_features_side_by_side(Rule& rule, std::size_t arguments) {
  rule.finish = [arguments](RulePlan& plan) {
    plan.kernel = [arguments, run = plan.operation](torch::jit::Stack& stack) {
      for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i) {
        if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
        const at::Tensor tensor = stack[i].toTensor();
        // One number a token: what forward saved.
        bool is_dense = tensor.dim() == 4 ? tensor.stride(3) == 1 : tensor.dim() != 3;
        if (!is_dense) stack[i] = tensor.contiguous();
      }
      run(stack);
    };
  };
}

// One more choice: tokens cut as those of the queries are. `first` is the operand that is the
// query, `causal` the argument that says whether there is a causal mask.
void add_cut_tokens(const RuleCall& call, Rule& rule, std::size_t first, std::size_t causal,
                    bool is_masked, void (RingAttention::*run)(torch::jit::Stack&) const) {
  const std::int64_t queries = call.sizes(first)[2], keys = call.sizes(first + 1)[2];
  const bool is_causal = call.argument(causal).toBool();
  if (is_masked || (is_causal && queries != keys)) return;
  for (Placement now : call.operands()[first].placements) {
    if (!now.is_shard_of(2) || now.parts() != 1) continue;
    RuleChoice choice{Placements(call.size(), now), Placements(rule.results.size(), now)};
    choice.once = true;
    rule.more.push_back(std::move(choice));
  }
  rule.finish = [=, arguments = call.arguments(), otherwise = rule.finish](RulePlan& plan) {
    const Placements& cuts = plan.operands[first];
    for (std::size_t axis = 0; axis < cuts.size(); ++axis) {
      if (!cuts[axis].is_shard_of(2)) continue;
      const RingAttention ring(*plan.context, static_cast<int>(axis), cuts[axis], is_causal,
                               queries, keys, plan.operation, arguments);
      plan.kernel = [ring, run](torch::jit::Stack& stack) { (ring.*run)(stack); };
      return;
    }
    otherwise(plan);
  };
}

// query, key, value, dropout_p, is_causal, attn_mask?, scale -> output, logsumexp
Rule flash(const RuleCall& call) {
  Rule rule = Attention(call, 0, 5).rule;
  std::vector<std::int64_t> sizes = call.sizes(0);
  std::vector<int> dims = rule.operands[0];
  rule.results = {{sizes, dims, strides_of(sizes)},
                  {{sizes.begin(), sizes.end() - 1}, {dims.begin(), dims.end() - 1}}};
  lay_features_side_by_side(rule, call.arguments());
  add_cut_tokens(call, rule, 0, 4, call.operand_of(5) >= 0, &RingAttention::forward);
  return rule;
}

// grad_out, query, key, value, out, logsumexp, ... -> three gradients
Rule flash_backward(const RuleCall& call) {
  Rule rule = Attention(call, 1, 8).rule;
  for (std::size_t i : {1, 2, 3})
    rule.results.push_back({call.sizes(i), rule.operands[i], strides_of(call.sizes(i))});
  lay_features_side_by_side(rule, call.arguments());
  add_cut_tokens(call, rule, 1, 7, call.operand_of(8) >= 0, &RingAttention::backward);
  return rule;
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table["_scaled_dot_product_flash_attention_for_cpu"] = flash;
  table["_scaled_dot_product_flash_attention_for_cpu_backward"] = flash_backward;
}

}  // namespace lockstep::global
