// Gpt: nanoGPT's language model (github.com/karpathy/nanoGPT, model.py) as a plain torch::nn
// module.
//
// Parameters have the names of the Python module: transformer.wte.weight, transformer.wpe.weight,
// transformer.h.0.ln_1.weight, transformer.h.0.attn.c_attn.weight, ..., transformer.ln_f.weight.
// The head shares its weight with the token embedding: the weight is registered once, as
// transformer.wte.weight, and is also exported as lm_head.weight (module/state_dict.h).
#pragma once

#include <lockstep/models/generate.h>
#include <lockstep/module/state_dict.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::models {

// The parts of Gpt: normalisation, causal self-attention, feed-forward layer, and the block that
// contains them.
//
// The modules and their names are those of nanoGPT (github.com/karpathy/nanoGPT, model.py), so
// weights can be exchanged in both directions. Activations are [rows, tokens, width].
struct GptOptions {
  std::int64_t layers = 4;
  std::int64_t heads = 4;  // must divide hidden_size
  std::int64_t hidden_size = 128;
  std::int64_t context_length = 64;  // maximum sequence length in tokens
  std::int64_t vocabulary = 65;      // tokens are 0 ... vocabulary - 1
  double dropout = 0.0;
  bool bias = false;       // in linear layers and normalisations; the head never has a bias
  bool tanh_gelu = false;  // use the tanh approximation of GELU, as GPT-2 does
};

// torch::nn::LayerNorm over the last dim with an optional bias.
class GptLayerNormImpl : public torch::nn::Module {
 public:
  GptLayerNormImpl(std::int64_t width, bool with_bias);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;  // undefined without bias
};
TORCH_MODULE(GptLayerNorm);

class GptAttentionImpl : public torch::nn::Module {
 public:
  explicit GptAttentionImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear c_attn;  // queries, keys and values: width -> 3 * width
  torch::nn::Linear c_proj;
  torch::nn::Dropout resid_dropout;

 private:
  std::int64_t heads_;
  double dropout_;
};
TORCH_MODULE(GptAttention);

class GptFeedForwardImpl : public torch::nn::Module {
 public:
  explicit GptFeedForwardImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear c_fc;
  torch::nn::Linear c_proj;
  torch::nn::Dropout dropout;

 private:
  bool tanh_gelu_;
};
TORCH_MODULE(GptFeedForward);

// Computes x + attn(ln_1(x)), then x + mlp(ln_2(x)).
class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

  GptLayerNorm ln_1;
  GptAttention attn;
  GptLayerNorm ln_2;
  GptFeedForward mlp;
};
TORCH_MODULE(GptBlock);

// Everything except the head: embeddings, blocks, final normalisation.
class GptTransformerImpl : public torch::nn::Module {
 public:
  explicit GptTransformerImpl(const GptOptions& options);
  // Maps int64 ids [rows, tokens] to [rows, tokens, width].
  at::Tensor forward(const at::Tensor& ids);

  torch::nn::Embedding wte;  // token embedding
  torch::nn::Embedding wpe;  // position embedding
  torch::nn::Dropout drop;
  torch::nn::ModuleList h;
  GptLayerNorm ln_f;
};
TORCH_MODULE(GptTransformer);

class GptImpl : public torch::nn::Module, public HasAliases {
 public:
  // Draws the initial weights from LibTorch's default generator: normal with standard deviation
  // 0.02, divided by sqrt(2 * layers) for projections into the residual stream; biases are 0.
  // Throws InvalidArgument if an option is invalid; the message names the option.
  explicit GptImpl(GptOptions options = {});

  // Maps int64 ids [rows, tokens] to logits [rows, tokens, vocabulary]. Throws InvalidArgument if a
  // row is longer than the block.
  at::Tensor forward(const at::Tensor& ids);

  // Returns the mean cross-entropy, in nats, of the next tokens. `targets` has the shape of `ids`;
  // positions with -1 are ignored. The result is NaN if every position is ignored.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);

  // Returns `ids` followed by `count` sampled tokens (generate.h).
  at::Tensor generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options = {});

  // lm_head.weight is an alias of transformer.wte.weight.
  [[nodiscard]] std::vector<Alias> aliases() const override;

  [[nodiscard]] const GptOptions& options() const { return options_; }

  GptTransformer transformer;

 private:
  at::Tensor head(const at::Tensor& x) const;

  GptOptions options_;
};
TORCH_MODULE(Gpt);

}  // namespace lockstep::models

#pragma GCC visibility pop
