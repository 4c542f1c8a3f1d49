// Scaled dot-product attention: rows and heads may be cut, tokens and features not.
#include "global/rules/tables.h"

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

// query, key, value, dropout_p, is_causal, attn_mask?, scale -> output, logsumexp
Rule flash(const RuleCall& call) {
  Rule rule = Attention(call, 0, 5).rule;
  std::vector<std::int64_t> sizes = call.sizes(0);
  std::vector<int> dims = rule.operands[0];
  rule.results = {{sizes, dims, strides_of(sizes)},
                  {{sizes.begin(), sizes.end() - 1}, {dims.begin(), dims.end() - 1}}};
  lay_features_side_by_side(rule, call.arguments());
  return rule;
}

// grad_out, query, key, value, out, logsumexp, ... -> three gradients
Rule flash_backward(const RuleCall& call) {
  Rule rule = Attention(call, 1, 8).rule;
  for (std::size_t i : {1, 2, 3})
    rule.results.push_back({call.sizes(i), rule.operands[i], strides_of(call.sizes(i))});
  lay_features_side_by_side(rule, call.arguments());
  return rule;
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table["_scaled_dot_product_flash_attention_for_cpu"] = flash;
  table["_scaled_dot_product_flash_attention_for_cpu_backward"] = flash_backward;
}

}  // namespace lockstep::global
