#include <lockstep/models/gpt_block.h>

namespace lockstep::models {
namespace {

torch::nn::Linear linear(std::int64_t from, std::int64_t to, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(bias));
}

}  // namespace

GptLayerNormImpl::GptLayerNormImpl(std::int64_t width, bool with_bias) {
  weight = register_parameter("weight", torch::ones(width));
  if (with_bias) bias = register_parameter("bias", torch::zeros(width));
}

at::Tensor GptLayerNormImpl::forward(const at::Tensor& x) {
  return at::layer_norm(x, weight.sizes(), weight, bias, /*eps=*/1e-5);
}

GptAttentionImpl::GptAttentionImpl(const GptOptions& options)
    : c_attn(linear(options.width, 3 * options.width, options.bias)),
      c_proj(linear(options.width, options.width, options.bias)),
      resid_dropout(options.dropout),
      heads_(options.heads),
      dropout_(options.dropout) {
  register_module("c_attn", c_attn);
  register_module("c_proj", c_proj);
  register_module("resid_dropout", resid_dropout);
}

at::Tensor GptAttentionImpl::forward(const at::Tensor& x) {
  const std::int64_t rows = x.size(0), tokens = x.size(1), width = x.size(2);
  auto per_head = [&](const at::Tensor& part) {
    return part.view({rows, tokens, heads_, width / heads_}).transpose(1, 2);
  };
  const std::vector<at::Tensor> parts = c_attn->forward(x).split(width, /*dim=*/2);
  at::Tensor mixed = at::scaled_dot_product_attention(
      per_head(parts[0]), per_head(parts[1]), per_head(parts[2]), /*attn_mask=*/std::nullopt,
      is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  mixed = mixed.transpose(1, 2).contiguous().view({rows, tokens, width});
  return resid_dropout->forward(c_proj->forward(mixed));
}

GptFeedForwardImpl::GptFeedForwardImpl(const GptOptions& options)
    : c_fc(linear(options.width, 4 * options.width, options.bias)),
      c_proj(linear(4 * options.width, options.width, options.bias)),
      dropout(options.dropout),
      tanh_gelu_(options.tanh_gelu) {
  register_module("c_fc", c_fc);
  register_module("c_proj", c_proj);
  register_module("dropout", dropout);
}

at::Tensor GptFeedForwardImpl::forward(const at::Tensor& x) {
  const at::Tensor bent = at::gelu(c_fc->forward(x), tanh_gelu_ ? "tanh" : "none");
  return dropout->forward(c_proj->forward(bent));
}

GptBlockImpl::GptBlockImpl(const GptOptions& options)
    : ln_1(options.width, options.bias),
      attn(options),
      ln_2(options.width, options.bias),
      mlp(options) {
  register_module("ln_1", ln_1);
  register_module("attn", attn);
  register_module("ln_2", ln_2);
  register_module("mlp", mlp);
}

at::Tensor GptBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + attn->forward(ln_1->forward(x));
  return y + mlp->forward(ln_2->forward(y));
}

}  // namespace lockstep::models
