// The parts of Gpt: normalisation, causal self-attention, feed-forward layer, and the block that
// contains them.
//
// The modules and their names are those of nanoGPT (github.com/karpathy/nanoGPT, model.py), so
// weights can be exchanged in both directions. Activations are [rows, tokens, width].
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#pragma GCC visibility push(default)

namespace lockstep::models {

struct GptOptions {
  std::int64_t layers = 4;
  std::int64_t heads = 4;  // must divide width
  std::int64_t width = 128;
  std::int64_t block = 64;       // maximum sequence length in tokens
  std::int64_t vocabulary = 65;  // tokens are 0 ... vocabulary - 1
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

}  // namespace lockstep::models

#pragma GCC visibility pop
