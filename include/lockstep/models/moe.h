// Moe: a Gpt (lockstep/models/gpt.h) of whose blocks some or all have a mixture of experts in the
// place of the feed-forward layer, as a plain torch::nn module.
//
// Parameters have the names of Gpt; those of a mixture are transformer.h.0.moe.router.weight,
// transformer.h.0.moe.up and transformer.h.0.moe.down.
#pragma once

#include <lockstep/models/generate.h>
#include <lockstep/models/gpt_block.h>
#include <lockstep/models/mixture.h>
#include <lockstep/module/state_dict.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::models {

struct MoeOptions {
  GptOptions gpt = {};
  std::int64_t every = 1;  // blocks every, 2 every, ... have a mixture, counted from 1
  // Of the mixtures, but width and hidden, which are the Gpt's.
  MixtureOptions mixture = {};
};

// x + attn(ln_1(x)), then x + moe(ln_2(x)).
class MoeBlockImpl : public torch::nn::Module {
 public:
  explicit MoeBlockImpl(const MoeOptions& options);
  // Its output, and the mixture's loss.
  MixtureImpl::Result forward(const at::Tensor& x);

  GptLayerNorm ln_1;
  GptAttention attn;
  GptLayerNorm ln_2;
  Mixture moe;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(MoeBlock);

// Everything below the head.
class MoeTransformerImpl : public torch::nn::Module {
 public:
  explicit MoeTransformerImpl(const MoeOptions& options);
  // [rows, tokens] int64 -> [rows, tokens, width], and the sum of the mixtures' losses.
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
  // Weights begin as Gpt's; an expert's `up` as c_fc, its `down` as c_proj. InvalidArgument names
  // an option that makes no sense.
  explicit MoeImpl(MoeOptions options = {});

  // As Gpt's.
  at::Tensor forward(const at::Tensor& ids);
  // Gpt's, and in train() the mixtures' losses besides.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);
  at::Tensor generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options = {});

  [[nodiscard]] std::vector<Alias> aliases() const override;
  [[nodiscard]] const MoeOptions& options() const { return options_; }
  // In the order of the blocks that have one.
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
