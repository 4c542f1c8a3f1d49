// Llama: the language model of Touvron et al. 2023 (arXiv:2302.13971 and 2307.09288) as a plain
// torch::nn module.
//
// Parameters have the names of the model hubs (transformers, models/llama):
// model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight, ..., model.norm.weight,
// lm_head.weight. A tied head is registered once, as model.embed_tokens.weight, and is also
// exported as lm_head.weight.
#pragma once

#include <lockstep/models/generate.h>
#include <lockstep/models/llama_block.h>
#include <lockstep/module/state_dict.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::models {

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
