// Scaled dot-product attention of global tensors. If PlacementHints::heads_axis is set, it computes
// attention by heads (DeepSpeed Ulysses: Jacobs et al., arXiv:2309.14509): queries, keys and values
// that are sharded along the sequence are sharded along heads during attention. One all_to_all
// converts each of them, and another one converts the result back. Backward has equally many.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace lockstep::global {

// Implements aten::scaled_dot_product_attention, also for plain tensors.
[[nodiscard]] at::Tensor attention(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                   double dropout, bool is_causal, std::optional<double> scale,
                                   bool is_grouped);

// Implements aten::_scaled_dot_product_attention_math, which LibTorch uses where it has no fused
// kernel. The causal mask of global tensors is global.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor> attention_formula(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
    const std::optional<at::Tensor>& dropout_mask, std::optional<double> scale, bool is_grouped);

}  // namespace lockstep::global
