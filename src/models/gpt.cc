#include <lockstep/models/gpt.h>

#include "models/language_models.h"

#include <lockstep/base/error.h>

#include <torch/nn/init.h>

#include <cmath>
#include <string_view>
#include <utility>

namespace lockstep::models {

GptLayerNormImpl::GptLayerNormImpl(std::int64_t width, bool with_bias) {
  weight = register_parameter("weight", torch::ones(width));
  if (with_bias) bias = register_parameter("bias", torch::zeros(width));
}

at::Tensor GptLayerNormImpl::forward(const at::Tensor& x) {
  return at::layer_norm(x, weight.sizes(), weight, bias, /*eps=*/1e-5);
}

GptAttentionImpl::GptAttentionImpl(const GptOptions& options)
    : c_attn(linear_layer(options.hidden_size, 3 * options.hidden_size, options.bias)),
      c_proj(linear_layer(options.hidden_size, options.hidden_size, options.bias)),
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
    : c_fc(linear_layer(options.hidden_size, 4 * options.hidden_size, options.bias)),
      c_proj(linear_layer(4 * options.hidden_size, options.hidden_size, options.bias)),
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
    : ln_1(options.hidden_size, options.bias),
      attn(options),
      ln_2(options.hidden_size, options.bias),
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

GptTransformerImpl::GptTransformerImpl(const GptOptions& options)
    : wte(options.vocabulary, options.hidden_size),
      wpe(options.context_length, options.hidden_size),
      drop(options.dropout),
      ln_f(options.hidden_size, options.bias) {
  register_module("wte", wte);
  register_module("wpe", wpe);
  register_module("drop", drop);
  register_module("h", h);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) h->push_back(GptBlock(options));
  register_module("ln_f", ln_f);
}

at::Tensor GptTransformerImpl::forward(const at::Tensor& ids) {
  const at::Tensor positions = at::arange(ids.size(1), ids.options().dtype(at::kLong));
  at::Tensor x = drop->forward(wte->forward(ids) + wpe->forward(positions));
  for (const auto& block : *h) x = block->as<GptBlockImpl>()->forward(x);
  return ln_f->forward(x);
}

GptImpl::GptImpl(GptOptions options) : transformer(checked(options, "Gpt")), options_(options) {
  register_module("transformer", transformer);
  draw_weights(*this, options_.layers);
}

at::Tensor GptImpl::forward(const at::Tensor& ids) {
  check_ids(ids, options_.context_length, "Gpt::forward");
  return head(transformer->forward(ids));
}

at::Tensor GptImpl::loss(const at::Tensor& ids, const at::Tensor& targets) {
  return token_loss(forward(ids), targets);
}

at::Tensor GptImpl::generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options) {
  return generate_tokens(*this, std::move(ids), count, options_.context_length, options,
                         [this](const at::Tensor& seen) {
                           const at::Tensor x = transformer->forward(seen);
                           return head(x.select(1, x.size(1) - 1));
                         });
}

std::vector<Alias> GptImpl::aliases() const {
  return {{"lm_head.weight", "transformer.wte.weight"}};
}

at::Tensor GptImpl::head(const at::Tensor& x) const {
  return at::linear(x, transformer->wte->weight);
}

torch::nn::Linear linear_layer(std::int64_t from, std::int64_t to, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(bias));
}

void check_ids(const at::Tensor& ids, std::int64_t context_length, const char* what) {
  if (ids.dim() != 2 || ids.size(1) > context_length)
    throw InvalidArgument(c10::str(what, ": expected ids of [rows, at most ", context_length,
                                   " tokens (the block)], found ", ids.sizes()));
}

at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  // Computes the loss in fp32 at least: a mean over many tokens in 16 bits would lose most of them
  // to rounding.
  const at::Tensor flat = logits.view({-1, logits.size(-1)});
  return at::cross_entropy_loss(flat.to(at::promote_types(flat.scalar_type(), at::kFloat)),
                                targets.reshape(-1), /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-1);
}

GptOptions checked(GptOptions options, const char* what) {
  auto positive = [what](const char* name, std::int64_t value) {
    if (value < 1)
      throw InvalidArgument(c10::str(what, ": expected ", name, " >= 1, found ", value));
  };
  positive("layers", options.layers);
  positive("heads", options.heads);
  positive("hidden_size", options.hidden_size);
  positive("context_length", options.context_length);
  positive("vocabulary", options.vocabulary);
  if (options.hidden_size % options.heads != 0) {
    throw InvalidArgument(c10::str(what, ": expected a width divisible by heads, ", options.heads,
                                   ", found ", options.hidden_size));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw InvalidArgument(c10::str(what, ": expected dropout in [0, 1), found ", options.dropout));
  }
  return options;
}

void draw_weights(torch::nn::Module& module, std::int64_t layers) {
  constexpr double deviation = 0.02;
  const double residual_deviation = deviation / std::sqrt(2.0 * static_cast<double>(layers));
  for (auto& item : module.named_parameters()) {
    const std::string_view name = item.key();
    if (name.ends_with(".bias")) {
      torch::nn::init::zeros_(item.value());
    } else if (item.value().dim() >= 2) {
      const bool ends_in_stream = name.ends_with("c_proj.weight") || name.ends_with(".down");
      torch::nn::init::normal_(item.value(), 0.0, ends_in_stream ? residual_deviation : deviation);
    }
  }
}

}  // namespace lockstep::models
