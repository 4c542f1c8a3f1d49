#include "global/attention.h"

#include "base/check.h"
#include "global/global_tensor.h"
#include "global/mesh_context.h"

#include <lockstep/global/tensor.h>

#include <ATen/ops/_scaled_dot_product_attention_math_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include <limits>
#include <optional>
#include <tuple>

namespace lockstep::global {
namespace {

constexpr int heads_dim = 1, tokens_dim = 2;

// Returns the tensor with heads sharded along the axis instead of tokens.
at::Tensor with_heads(const at::Tensor& tensor, int axis, const char* what) {
  const GlobalTensor* found = global_of(tensor);
  if (found == nullptr) return tensor;
  Placements to(found->spec->placements.begin(), found->spec->placements.end());
  Placement& now = to[static_cast<std::size_t>(axis)];
  if (!now.is_shard_of(tokens_dim)) return tensor;
  const std::int64_t heads = found->local.size(heads_dim);
  const int ranks = found->spec->context->place()[static_cast<std::size_t>(axis)].size;
  check(heads % ranks == 0,
        "context parallel: attention by heads (ulysses) needs a number of heads divisible by the "
        "number of ranks, {}, found {} of {} on a rank; ring attention takes any",
        ranks, heads, what);
  now = Shard(heads_dim);
  return redistribute(tensor, to);
}

int heads_axis_of(const at::Tensor& query) {
  const GlobalTensor* found = query.dim() == 4 ? global_of(query) : nullptr;
  if (found == nullptr) return -1;
  const int axis = found->spec->context->hints.heads_axis;
  if (axis < 0) return -1;
  return found->spec->placements[static_cast<std::size_t>(axis)].is_shard_of(tokens_dim) ? axis
                                                                                         : -1;
}

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                     std::optional<double> scale, bool is_grouped) {
  const int axis = heads_axis_of(query);
  if (axis < 0)
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal,
                                                    scale, is_grouped);
  const auto& placements = global_of(query)->spec->placements;
  const Placements back(placements.begin(), placements.end());
  const at::Tensor result = at::native::scaled_dot_product_attention(
      with_heads(query, axis, "queries"), with_heads(key, axis, "keys"),
      with_heads(value, axis, "values"), mask, dropout, is_causal, scale, is_grouped);
  return redistribute(result, back);
}

std::tuple<at::Tensor, at::Tensor> attention_formula(const at::Tensor& query, const at::Tensor& key,
                                                     const at::Tensor& value,
                                                     const std::optional<at::Tensor>& mask,
                                                     double dropout, bool is_causal,
                                                     const std::optional<at::Tensor>& dropout_mask,
                                                     std::optional<double> scale, bool is_grouped) {
  std::optional<at::Tensor> bias = mask;
  if (is_causal && !mask && is_global(query)) {  // LibTorch refuses a mask beside is_causal
    constexpr double infinity = std::numeric_limits<double>::infinity();
    bias = query.new_full({query.size(-2), key.size(-2)}, -infinity).triu(1);
    is_causal = false;
  }
  return at::native::_scaled_dot_product_attention_math(query, key, value, bias, dropout, is_causal,
                                                        dropout_mask, scale, is_grouped);
}

}  // namespace lockstep::global
