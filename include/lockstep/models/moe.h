// Moe: a Gpt (lockstep/models/gpt.h) in which a mixture of experts replaces the feed-forward layer
// of some or all blocks, as a plain torch::nn module.
//
// Parameters have the names of Gpt. The parameters of a mixture are
// transformer.h.0.moe.router.weight, transformer.h.0.moe.up and transformer.h.0.moe.down.
#pragma once

#include <lockstep/models/generate.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/mixture.h>
#include <lockstep/module/state_dict.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::models {

struct MoeOptions {
  GptOptions gpt = {};
  std::int64_t every = 1;  // every n-th block has a mixture: blocks n, 2n, ..., counted from 1
  // Options of the mixtures. `hidden_size` and `ffn_size` are ignored: they follow from the width
  // of the Gpt.
  MixtureOptions mixture = {};
};

// Computes x + attn(ln_1(x)), then x + moe(ln_2(x)).
class MoeBlockImpl : public torch::nn::Module {
 public:
  explicit MoeBlockImpl(const MoeOptions& options);
  // Returns the block's output and the mixture's loss.
  MixtureImpl::Result forward(const at::Tensor& x);

  GptLayerNorm ln_1;
  GptAttention attn;
  GptLayerNorm ln_2;
  Mixture moe;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(MoeBlock);

// Everything except the head.
class MoeTransformerImpl : public torch::nn::Module {
 public:
  explicit MoeTransformerImpl(const MoeOptions& options);
  // Maps int64 ids [rows, tokens] to [rows, tokens, width] and the sum of the mixtures' losses.
  MixtureImpl::Result forward(const at::Tensor& ids);

  torch::nn::Embedding wte;
  torch::nn::Embedding wpe;
  torch::nn::Dropout drop;
  torch::nn::ModuleList h;
  GptLayerNorm ln_f;
};
TORCH_MODULE(MoeTransformer);

class MoeImpl : public torch::nn::Module, public HasAliases {
 public:
  // Initialises weights as Gpt does; an expert's `up` like c_fc, its `down` like c_proj. Throws
  // InvalidArgument if an option is invalid; the message names the option.
  explicit MoeImpl(MoeOptions options = {});

  // Same as GptImpl::forward().
  at::Tensor forward(const at::Tensor& ids);
  // Returns the loss of GptImpl::loss() and, in train(), adds the losses of the mixtures.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);
  at::Tensor generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options = {});

  [[nodiscard]] std::vector<Alias> aliases() const override;
  [[nodiscard]] const MoeOptions& options() const { return options_; }
  // Returns the mixtures in the order of their blocks.
  [[nodiscard]] std::vector<Mixture> mixtures() const;

  MoeTransformer transformer;

 private:
  at::Tensor head(const at::Tensor& x) const;
  void check_ids(const at::Tensor& ids) const;

  MoeOptions options_;
};
TORCH_MODULE(Moe);

}  // namespace lockstep::models

#pragma GCC visibility pop
