// Llama: the language model of Touvron et al. 2023 (arXiv:2302.13971 and 2307.09288) as a plain
// torch::nn module.
//
// Parameters have the names of the model hubs (transformers, models/llama):
// model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight, ..., model.norm.weight,
// lm_head.weight. A tied head is registered once, as model.embed_tokens.weight, and is also
// exported as lm_head.weight.
#pragma once

#include <lockstep/models/generate.h>
#include <lockstep/module/state_dict.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::models {

// The parts of Llama: RMS normalisation, rotary positions, causal self-attention with grouped
// queries, the gated feed-forward layer, and the block that contains them.
//
// The modules and their names are those of the model hubs' Llama (transformers,
// models/llama/modeling_llama.py), so weights can be exchanged in both directions. Activations are
// [rows, tokens, width].

// Scales the rotary frequencies for sequences that are longer than in training.
struct RotaryScaling {
  double factor = 1;  // all rotation angles are divided by it
  // Scaling of Llama 3.1 by wavelength (transformers, modeling_rope_utils.py, "llama3"). Angles
  // with wavelengths shorter than trained_tokens / high_frequency_factor positions are unchanged;
  // angles with wavelengths longer than trained_tokens / low_frequency_factor are divided by
  // `factor`; between the two limits the scaling is interpolated.
  struct ByWave {
    double low_frequency_factor = 1;
    double high_frequency_factor = 4;
    double trained_tokens = 8192;
  };
  std::optional<ByWave> by_wave = std::nullopt;
};

struct LlamaOptions {
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t key_value_heads = 4;  // must divide heads
  std::int64_t hidden_size = 128;
  std::int64_t head_width = 0;           // even; 0: hidden_size / heads
  std::int64_t intermediate_size = 344;  // hidden features of the feed-forward layer
  std::int64_t context_length = 64;      // maximum sequence length in tokens
  std::int64_t vocabulary = 65;
  double rotary_base = 10000;
  RotaryScaling rotary_scaling = {};
  double norm_epsilon = 1e-5;
  bool attention_bias = false;
  bool feed_forward_bias = false;
  bool tied = false;  // the head shares its weight with the token embedding
};

// Computes x / sqrt(mean(x^2) + epsilon) * weight over the last dim (Zhang and Sennrich 2019,
// arXiv:1910.07467).
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(std::int64_t width, double epsilon);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;

 private:
  double epsilon_;
};
TORCH_MODULE(RmsNorm);

// Rotary position embeddings (Su et al. 2021, arXiv:2104.09864): features i and i + half of a head
// are rotated together by position * base^(-2i / head width), in fp32 like the hubs' models.
class RotaryPositions {
 public:
  explicit RotaryPositions(const LlamaOptions& options);
  // Rotates `x` ([rows, heads, tokens, head width]); token t has position t.
  [[nodiscard]] at::Tensor rotate(const at::Tensor& x) const;

 private:
  std::vector<float> frequencies_;  // of each feature pair, in radians per position
};

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear q_proj, k_proj, v_proj, o_proj;

 private:
  std::int64_t heads_, key_value_heads_, head_width_;
  RotaryPositions positions_;
};
TORCH_MODULE(LlamaAttention);

// Computes down_proj(silu(gate_proj(x)) * up_proj(x)) (SwiGLU, Shazeer 2020, arXiv:2002.05202).
class LlamaFeedForwardImpl : public torch::nn::Module {
 public:
  explicit LlamaFeedForwardImpl(const LlamaOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear gate_proj, up_proj, down_proj;
};
TORCH_MODULE(LlamaFeedForward);

// Computes x + self_attn(input_layernorm(x)), then x + mlp(post_attention_layernorm(x)).
class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const LlamaOptions& options);
  at::Tensor forward(const at::Tensor& x);

  LlamaAttention self_attn;
  LlamaFeedForward mlp;
  RmsNorm input_layernorm;
  RmsNorm post_attention_layernorm;
};
TORCH_MODULE(LlamaBlock);

// Everything except the head: embedding, blocks, final normalisation.
class LlamaModelImpl : public torch::nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaOptions& options);
  // Maps int64 ids [rows, tokens] to [rows, tokens, width].
  at::Tensor forward(const at::Tensor& ids);

  torch::nn::Embedding embed_tokens;
  torch::nn::ModuleList layers;
  RmsNorm norm;
};
TORCH_MODULE(LlamaModel);

class LlamaImpl : public torch::nn::Module, public HasAliases {
 public:
  // Draws the initial weights from LibTorch's default generator: normal with standard deviation
  // 0.02; biases are 0 and norms 1. Throws InvalidArgument if an option is invalid; the message
  // names the option.
  explicit LlamaImpl(LlamaOptions options = {});

  // Maps int64 ids [rows, tokens] to logits [rows, tokens, vocabulary]. Throws InvalidArgument if a
  // row is longer than the block.
  at::Tensor forward(const at::Tensor& ids);

  // Returns the mean cross-entropy, in nats, of the next tokens. `targets` has the shape of `ids`;
  // positions with -1 are ignored. The result is NaN if every position is ignored.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);

  // Returns `ids` followed by `count` sampled tokens (generate.h).
  at::Tensor generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options = {});

  // If the head is tied, lm_head.weight is an alias of model.embed_tokens.weight.
  [[nodiscard]] std::vector<Alias> aliases() const override;

  [[nodiscard]] const LlamaOptions& options() const { return options_; }

  LlamaModel model;
  torch::nn::Linear lm_head{nullptr};  // empty if tied

 private:
  at::Tensor head(const at::Tensor& x) const;

  LlamaOptions options_;
};
TORCH_MODULE(Llama);

}  // namespace lockstep::models

#pragma GCC visibility pop
