// Rules of scaled dot-product attention: rows and heads may be sharded, features may not. The
// tokens of queries, keys and values may be sharded in the same way (ring_attention.h).
#include "global/ring_attention.h"
#include "global/rule_line.h"
#include "global/rules/dims.h"

#include <algorithm>
#include <utility>

namespace lockstep::global {
namespace {

// `first` is the operand of the query; keys and values follow it. Argument `mask` is [tokens,
// tokens], optionally with leading dims for rows and heads, which may have one element.
Rule attention(const RuleCall& call, std::size_t first, int mask) {
  Rule rule;
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
  return rule;
}

// Returns the strides of the kernel's result: [rows, tokens, heads, features], viewed as [rows,
// heads, ...].
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[3], sizes[1] * sizes[3], 1};
}

// Makes features contiguous, as the kernel requires. LibTorch chooses the kernel by the strides of
// the whole tensor, but a rank's part may have other strides.
void lay_features_side_by_side(Rule& rule, std::size_t arguments) {
  rule.finish = [arguments](RulePlan& plan) {
    plan.kernel = [arguments, run = plan.operation](torch::jit::Stack& stack) {
      for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i) {
        if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
        const at::Tensor tensor = stack[i].toTensor();
        // Three dims: one number per token, which forward saved.
        bool is_dense = tensor.dim() == 4 ? tensor.stride(3) == 1 : tensor.dim() != 3;
        if (!is_dense) stack[i] = tensor.contiguous();
      }
      run(stack);
    };
  };
}

// Adds the choice that shards tokens in the same way as those of the queries. `first` is the
// operand of the query, and `mask` is the argument of a mask.
void add_cut_tokens(const RuleCall& call, Rule& rule, std::size_t first, int mask,
                    const AttentionForm& form) {
  const std::int64_t queries = call.sizes(first)[2], keys = call.sizes(first + 1)[2];
  const bool is_causal = call.argument(form.causal).toBool();
  const bool is_masked = mask >= 0 && call.operand_of(mask) >= 0;
  if (is_masked || (is_causal && queries != keys) || queries % form.alignment != 0) return;
  const auto run = first == 0 ? &RingAttention::forward : &RingAttention::backward;
  const std::size_t of_tokens = first == 0 ? 2 : 3;
  for (Placement now : call.operands()[first].placements) {
    if (!now.is_shard_of(2) || now.parts() != 1) continue;
    RuleChoice choice;
    for (std::size_t i = 0; i < call.size(); ++i)
      choice.operands.push_back(call.sizes(i).size() > 2 ? now : Placement(Replicate()));
    choice.results.assign(rule.results.size(), Replicate());
    std::fill_n(choice.results.begin(), of_tokens, now);
    choice.once = true;
    rule.more.push_back(std::move(choice));
  }
  rule.finish = [=, arguments = call.arguments(), otherwise = rule.finish](RulePlan& plan) {
    const Placements& cuts = plan.operands[first];
    for (std::size_t axis = 0; axis < cuts.size(); ++axis) {
      if (!cuts[axis].is_shard_of(2)) continue;
      const RingAttention ring(*plan.context, static_cast<int>(axis), cuts[axis], is_causal,
                               queries, keys, plan.operation, arguments, form);
      plan.kernel = [ring, run](torch::jit::Stack& stack) { (ring.*run)(stack); };
      return;
    }
    otherwise(plan);
  };
}

// Schema: query, key, value, dropout_p, is_causal, attn_mask?, scale -> output, logsumexp
Rule flash(const RuleCall& call) {
  Rule rule = attention(call, 0, 5);
  std::vector<std::int64_t> sizes = call.sizes(0);
  std::vector<int> dims = rule.operands[0];
  rule.results = {{sizes, dims, strides_of(sizes)},
                  {{sizes.begin(), sizes.end() - 1}, {dims.begin(), dims.end() - 1}}};
  lay_features_side_by_side(rule, call.arguments());
  add_cut_tokens(call, rule, 0, 5, {.causal = 4});
  return rule;
}

// Schema: grad_out, query, key, value, out, logsumexp, ... -> three gradients
Rule flash_backward(const RuleCall& call) {
  Rule rule = attention(call, 1, 8);
  for (std::size_t i : {1, 2, 3})
    rule.results.push_back({call.sizes(i), rule.operands[i], strides_of(call.sizes(i))});
  lay_features_side_by_side(rule, call.arguments());
  add_cut_tokens(call, rule, 1, 8, {.causal = 7});
  return rule;
}

// Returns the rule of a CUDA kernel. Results other than outputs and logsumexp are equal on all
// ranks, for any sharding of rows and heads. With dropout, nothing is sharded: a rank would draw
// other numbers for its heads than a single process.
Rule device_attention(const RuleCall& call, std::size_t first, int mask) {
  Rule rule = attention(call, first, mask);
  for (Rule::Label& label : rule.labels) label.cut = false;
  return rule;
}

Placement place_of(int label, const std::vector<int>& dims) {
  const auto found = std::ranges::find(dims, label);
  if (found == dims.end()) return Replicate();
  return Shard(static_cast<int>(found - dims.begin()));
}

// Without dropout, adds the choices that shard rows, heads or tokens. With dropout, compares
// generators before the kernel draws, which is in forward.
Rule device_choices(const RuleCall& call, Rule rule, std::size_t first, double dropout, int mask,
                    const AttentionForm& form) {
  lay_features_side_by_side(rule, call.arguments());
  const bool draws = first == 0 && dropout > 0;
  if (draws) rule.finish = compared(call, std::move(rule.finish));
  for (int label = 0; dropout == 0 && label < std::ssize(rule.labels); ++label) {
    RuleChoice choice;
    for (const std::vector<int>& dims : rule.operands)
      choice.operands.push_back(place_of(label, dims));
    for (const Rule::Result& result : rule.results)
      choice.results.push_back(place_of(label, result.dims));
    const auto dim = static_cast<std::size_t>(label);
    for (std::size_t i = first; i < first + 3; ++i) choice.lengths.push_back(call.sizes(i)[dim]);
    rule.more.push_back(std::move(choice));
  }
  if (dropout == 0) add_cut_tokens(call, rule, first, mask, form);
  return rule;
}

// Returns a result with the memory order of an operand and `features` in its last dim: [rows,
// tokens, heads, features], viewed as [rows, heads, ...], or row-major.
Rule::Result laid_out_as(const RuleCall& call, const Rule& rule, std::size_t operand,
                         std::int64_t features) {
  std::vector<std::int64_t> sizes = call.sizes(operand);
  sizes.back() = features;
  const std::vector<std::int64_t>& strides = call.operands()[operand].strides;
  Rule::Result result{sizes, rule.operands[operand]};
  if (strides[1] < strides[2]) result.strides = strides_of(sizes);
  return result;
}

Rule::Result laid_out_as(const RuleCall& call, const Rule& rule, std::size_t operand) {
  return laid_out_as(call, rule, operand, call.sizes(operand).back());
}

// The output of forward, which has the features of the values.
Rule::Result output_of(const RuleCall& call, const Rule& rule) {
  return laid_out_as(call, rule, 0, call.sizes(2).back());
}

// A result with one number for each of `tokens` queries.
Rule::Result number_a_token(const RuleCall& call, const Rule& rule, std::int64_t tokens) {
  const std::vector<std::int64_t>& query = call.sizes(0);
  return {{query[0], query[1], tokens}, {rule.operands[0][0], rule.operands[0][1], Rule::whole}};
}

// A result that is equal on all ranks.
Rule::Result whole_of(std::vector<std::int64_t> sizes) {
  return {sizes, std::vector<int>(sizes.size(), Rule::whole)};
}

// Schema: query, key, value, attn_bias?, compute_log_sumexp, dropout_p, ... -> output, logsumexp
// [rows, heads, tokens, 1], two offsets (undefined), seed and offset of the generator, an unused
// mask
Rule cudnn(const RuleCall& call) {
  Rule rule = device_attention(call, 0, 3);
  Rule::Result logsumexp = number_a_token(call, rule, call.sizes(0)[2]);
  logsumexp.sizes.push_back(1);
  logsumexp.dims.push_back(Rule::whole);
  rule.results = {output_of(call, rule), logsumexp,    whole_of({0}), whole_of({0}),
                  whole_of({}),          whole_of({}), whole_of({0})};
  return device_choices(call, std::move(rule), 0, call.argument(5).toDouble(), 3,
                        {.causal = 6, .results = 9, .keeps_sums = 4, .has_last_dim = true});
}

// Schema: grad_out, query, key, value, out, logsumexp, seed, offset, attn_bias, two offsets, max_q,
// max_k, dropout_p, ... -> three gradients
Rule cudnn_backward(const RuleCall& call) {
  Rule rule = device_attention(call, 1, 8);
  for (std::size_t i : {1, 2, 3}) rule.results.push_back(laid_out_as(call, rule, i));
  return device_choices(call, std::move(rule), 1, call.argument(13).toDouble(), 8,
                        {.causal = 14, .longest = 11, .has_last_dim = true});
}

// Schema: query, key, value, dropout_p, is_causal, ... -> output, logsumexp, two offsets
// (undefined: no nested tensors), the generator's state, one unused number, an unused mask
Rule cuda_flash(const RuleCall& call) {
  Rule rule = device_attention(call, 0, -1);
  if (!call.argument(3).isDouble()) return rule;  // overload for quantized tensors: replicated
  rule.results = {output_of(call, rule), number_a_token(call, rule, call.sizes(0)[2]),
                  whole_of({0}),         whole_of({0}),
                  whole_of({2}),         whole_of({}),
                  whole_of({0})};
  return device_choices(call, std::move(rule), 0, call.argument(3).toDouble(), -1,
                        {.causal = 4, .results = 9});
}

// Schema: grad_out, query, key, value, out, logsumexp, two offsets, max_q, max_k, dropout_p, ... ->
// three gradients
Rule cuda_flash_backward(const RuleCall& call) {
  Rule rule = device_attention(call, 1, -1);
  for (std::size_t i : {1, 2, 3}) rule.results.push_back(laid_out_as(call, rule, i));
  return device_choices(call, std::move(rule), 1, call.argument(10).toDouble(), -1,
                        {.causal = 11, .longest = 8});
}

// The memory-efficient kernel rounds the tokens of logsumexp up to a multiple of this.
constexpr std::int64_t sums_alignment = 32;

// Schema: query, key, value, attn_bias?, compute_log_sumexp, dropout_p, is_causal -> output,
// logsumexp, seed and offset of the generator.
Rule cuda_efficient(const RuleCall& call) {
  Rule rule = device_attention(call, 0, 3);
  const std::int64_t tokens =
      (call.sizes(0)[2] + sums_alignment - 1) / sums_alignment * sums_alignment;
  rule.results = {output_of(call, rule),
                  number_a_token(call, rule, call.argument(4).toBool() ? tokens : 0), whole_of({}),
                  whole_of({})};
  return device_choices(call, std::move(rule), 0, call.argument(5).toDouble(), 3,
                        {.causal = 6, .results = 4, .keeps_sums = 4, .alignment = sums_alignment});
}

// Schema: grad_out, query, key, value, attn_bias, out, logsumexp, seed, offset, dropout_p,
// grad_input_mask, ... -> three gradients, and the mask's gradient if it is wanted. Nothing is
// sharded then, because a mask that all heads share gets the sum of their gradients.
Rule cuda_efficient_backward(const RuleCall& call) {
  Rule rule = device_attention(call, 1, 4);
  for (std::size_t i : {1, 2, 3}) rule.results.push_back(laid_out_as(call, rule, i));
  const int mask = call.operand_of(4);
  const bool wants_mask = mask >= 0 && call.argument(10).toBoolList().get(3);
  rule.results.push_back(wants_mask ? whole_of(call.sizes(static_cast<std::size_t>(mask)))
                                    : whole_of({0}));
  if (wants_mask) {
    lay_features_side_by_side(rule, call.arguments());
    return rule;
  }
  return device_choices(
      call, std::move(rule), 1, call.argument(9).toDouble(), 4,
      {.causal = 11, .sums = 6, .gradient_mask = 10, .alignment = sums_alignment});
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table["_scaled_dot_product_flash_attention"] = cuda_flash;
  table["_scaled_dot_product_flash_attention_backward"] = cuda_flash_backward;
  table["_scaled_dot_product_cudnn_attention"] = cudnn;
  table["_scaled_dot_product_cudnn_attention_backward"] = cudnn_backward;
  table["_scaled_dot_product_efficient_attention"] = cuda_efficient;
  table["_scaled_dot_product_efficient_attention_backward"] = cuda_efficient_backward;
  table["_scaled_dot_product_flash_attention_for_cpu"] = flash;
  table["_scaled_dot_product_flash_attention_for_cpu_backward"] = flash_backward;
}

}  // namespace lockstep::global
