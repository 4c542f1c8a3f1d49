#include <lockstep/models/llama.h>

#include "models/language_models.h"

#include <lockstep/base/error.h>

#include <torch/nn/init.h>

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace lockstep::models {
namespace {

std::int64_t head_width(const LlamaOptions& options) {
  return options.head_width > 0 ? options.head_width : options.hidden_size / options.heads;
}

double scaled(double frequency, const RotaryScaling& scaling) {
  const double divided = frequency / scaling.factor;
  if (!scaling.by_wave) return divided;
  const auto& [low, high, trained] = *scaling.by_wave;
  const double wave = 2 * std::numbers::pi / frequency;
  if (wave < trained / high) return frequency;
  if (wave > trained / low) return divided;
  const double kept = (trained / wave - low) / (high - low);
  return (1 - kept) * divided + kept * frequency;
}

// Repeats each head of `x` ([rows, heads, tokens, head width]) `times` times; the copies of a head
// are adjacent.
at::Tensor repeated(const at::Tensor& x, std::int64_t times) {
  if (times == 1) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), times, x.size(2), x.size(3)})
      .reshape({x.size(0), x.size(1) * times, x.size(2), x.size(3)});
}

}  // namespace

RmsNormImpl::RmsNormImpl(std::int64_t width, double epsilon) : epsilon_(epsilon) {
  weight = register_parameter("weight", torch::ones(width));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  // Computed in fp32 at least, and rounded before the multiplication by the weight, as in the hubs'
  // Llama.
  const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  const at::Tensor normal = wide * at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + epsilon_);
  return weight * normal.to(x.scalar_type());
}

RotaryPositions::RotaryPositions(const LlamaOptions& options) {
  const std::int64_t width = head_width(options);
  for (std::int64_t i = 0; i < width / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(width);
    const double frequency = 1 / std::pow(options.rotary_base, exponent);
    frequencies_.push_back(static_cast<float>(scaled(frequency, options.rotary_scaling)));
  }
}

at::Tensor RotaryPositions::rotate(const at::Tensor& x) const {
  const at::Tensor frequencies = torch::tensor(frequencies_, at::kFloat);
  const at::Tensor angles = at::outer(at::arange(x.size(2), at::kFloat), frequencies);
  const at::Tensor both = at::cat({angles, angles}, /*dim=*/-1);
  const at::Tensor cosine = both.cos().to(x.options()), sine = both.sin().to(x.options());
  const std::int64_t half = x.size(3) / 2;
  const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, /*dim=*/3);
  return x * cosine + turned * sine;
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaOptions& options)
    : q_proj(linear_layer(options.hidden_size, options.heads * head_width(options),
                          options.attention_bias)),
      k_proj(linear_layer(options.hidden_size, options.key_value_heads * head_width(options),
                          options.attention_bias)),
      v_proj(linear_layer(options.hidden_size, options.key_value_heads * head_width(options),
                          options.attention_bias)),
      o_proj(linear_layer(options.heads * head_width(options), options.hidden_size,
                          options.attention_bias)),
      heads_(options.heads),
      key_value_heads_(options.key_value_heads),
      head_width_(head_width(options)),
      positions_(options) {
  register_module("q_proj", q_proj);
  register_module("k_proj", k_proj);
  register_module("v_proj", v_proj);
  register_module("o_proj", o_proj);
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x) {
  const std::int64_t rows = x.size(0), tokens = x.size(1), times = heads_ / key_value_heads_;
  auto by_head = [&](const at::Tensor& part, std::int64_t heads) {
    return part.view({rows, tokens, heads, head_width_}).transpose(1, 2);
  };
  const at::Tensor queries = positions_.rotate(by_head(q_proj->forward(x), heads_));
  const at::Tensor keys = positions_.rotate(by_head(k_proj->forward(x), key_value_heads_));
  const at::Tensor values = by_head(v_proj->forward(x), key_value_heads_);
  at::Tensor mixed = at::scaled_dot_product_attention(
      queries, repeated(keys, times), repeated(values, times), /*attn_mask=*/std::nullopt,
      /*dropout_p=*/0.0, /*is_causal=*/true);
  mixed = mixed.transpose(1, 2).contiguous().view({rows, tokens, heads_ * head_width_});
  return o_proj->forward(mixed);
}

LlamaFeedForwardImpl::LlamaFeedForwardImpl(const LlamaOptions& options)
    : gate_proj(
          linear_layer(options.hidden_size, options.intermediate_size, options.feed_forward_bias)),
      up_proj(
          linear_layer(options.hidden_size, options.intermediate_size, options.feed_forward_bias)),
      down_proj(
          linear_layer(options.intermediate_size, options.hidden_size, options.feed_forward_bias)) {
  register_module("gate_proj", gate_proj);
  register_module("up_proj", up_proj);
  register_module("down_proj", down_proj);
}

at::Tensor LlamaFeedForwardImpl::forward(const at::Tensor& x) {
  return down_proj->forward(at::silu(gate_proj->forward(x)) * up_proj->forward(x));
}

LlamaBlockImpl::LlamaBlockImpl(const LlamaOptions& options)
    : self_attn(options),
      mlp(options),
      input_layernorm(options.hidden_size, options.norm_epsilon),
      post_attention_layernorm(options.hidden_size, options.norm_epsilon) {
  register_module("self_attn", self_attn);
  register_module("mlp", mlp);
  register_module("input_layernorm", input_layernorm);
  register_module("post_attention_layernorm", post_attention_layernorm);
}

at::Tensor LlamaBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + self_attn->forward(input_layernorm->forward(x));
  return y + mlp->forward(post_attention_layernorm->forward(y));
}

namespace {

LlamaOptions checked(LlamaOptions options) {
  auto positive = [](const char* name, auto value) {
    if (!(value > 0))
      throw InvalidArgument(c10::str("Llama: expected ", name, " above 0, found ", value));
  };
  positive("layers", options.layers);
  positive("heads", options.heads);
  positive("key_value_heads", options.key_value_heads);
  positive("hidden_size", options.hidden_size);
  positive("intermediate_size", options.intermediate_size);
  positive("context_length", options.context_length);
  positive("vocabulary", options.vocabulary);
  positive("rotary_base", options.rotary_base);
  positive("rotary_scaling.factor", options.rotary_scaling.factor);
  if (options.heads % options.key_value_heads != 0)
    throw InvalidArgument(c10::str("Llama: expected heads divisible by key_value_heads, ",
                                   options.key_value_heads, ", found ", options.heads));
  if (options.head_width == 0) {
    if (options.hidden_size % options.heads != 0)
      throw InvalidArgument(c10::str("Llama: expected a width divisible by heads, ", options.heads,
                                     ", found ", options.hidden_size));
    options.head_width = options.hidden_size / options.heads;
  }
  if (options.head_width < 2 || options.head_width % 2 != 0)
    throw InvalidArgument(
        c10::str("Llama: expected an even head_width, whose halves are rotated, found ",
                 options.head_width));
  return options;
}

void initialise(torch::nn::Module& module) {
  for (auto& item : module.named_parameters()) {
    if (item.key().ends_with(".bias"))
      torch::nn::init::zeros_(item.value());
    else if (item.value().dim() == 2)
      torch::nn::init::normal_(item.value(), 0.0, 0.02);
  }
}

}  // namespace

LlamaModelImpl::LlamaModelImpl(const LlamaOptions& options)
    : embed_tokens(options.vocabulary, options.hidden_size),
      norm(options.hidden_size, options.norm_epsilon) {
  register_module("embed_tokens", embed_tokens);
  register_module("layers", layers);
  for (std::int64_t layer = 0; layer < options.layers; ++layer)
    layers->push_back(LlamaBlock(options));
  register_module("norm", norm);
}

at::Tensor LlamaModelImpl::forward(const at::Tensor& ids) {
  at::Tensor x = embed_tokens->forward(ids);
  for (const auto& layer : *layers) x = layer->as<LlamaBlockImpl>()->forward(x);
  return norm->forward(x);
}

LlamaImpl::LlamaImpl(LlamaOptions options) : model(options = checked(options)), options_(options) {
  register_module("model", model);
  if (!options_.tied)
    lm_head =
        register_module("lm_head", linear_layer(options_.hidden_size, options_.vocabulary, false));
  initialise(*this);
}

at::Tensor LlamaImpl::forward(const at::Tensor& ids) {
  check_ids(ids, options_.context_length, "Llama::forward");
  return head(model->forward(ids));
}

at::Tensor LlamaImpl::loss(const at::Tensor& ids, const at::Tensor& targets) {
  return token_loss(forward(ids), targets);
}

at::Tensor LlamaImpl::generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options) {
  return generate_tokens(*this, std::move(ids), count, options_.context_length, options,
                         [this](const at::Tensor& seen) {
                           const at::Tensor x = model->forward(seen);
                           return head(x.select(1, x.size(1) - 1));
                         });
}

std::vector<Alias> LlamaImpl::aliases() const {
  if (!options_.tied) return {};
  return {{"lm_head.weight", "model.embed_tokens.weight"}};
}

at::Tensor LlamaImpl::head(const at::Tensor& x) const {
  return at::linear(x, options_.tied ? model->embed_tokens->weight : lm_head->weight);
}

}  // namespace lockstep::models
