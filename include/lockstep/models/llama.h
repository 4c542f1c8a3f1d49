// Llama: the language model of that name (Touvron et al. 2023, arXiv:2302.13971 and 2307.09288) as
// a plain torch::nn module.
//
// Parameters have the names of the model hubs (transformers, models/llama):
// model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight, ..., model.norm.weight,
// lm_head.weight. A tied head is registered once, as model.embed_tokens.weight, and exported also
// as lm_head.weight.
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

// Everything below the head: embedding, blocks, last normalisation.
class LlamaModelImpl : public torch::nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaOptions& options);
  // [rows, tokens] int64 -> [rows, tokens, width].
  at::Tensor forward(const at::Tensor& ids);

  torch::nn::Embedding embed_tokens;
  torch::nn::ModuleList layers;
  RmsNorm norm;
};
TORCH_MODULE(LlamaModel);

class LlamaImpl : public torch::nn::Module, public HasAliases {
 public:
  // Draws initial weights from LibTorch's default generator: normal with standard deviation 0.02;
  // biases 0, norms 1. InvalidArgument names an option that makes no sense.
  explicit LlamaImpl(LlamaOptions options = {});

  // [rows, tokens] int64 -> logits [rows, tokens, vocabulary]. InvalidArgument when a row is longer
  // than the block.
  at::Tensor forward(const at::Tensor& ids);

  // Mean cross-entropy, in nats, of the tokens that follow: `targets` has ids' shape, and -1 where
  // nothing is to be predicted. NaN when nothing is.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);

  // `ids` with `count` tokens drawn behind it (generate.h).
  at::Tensor generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options = {});

  // Of a tied head: lm_head.weight is model.embed_tokens.weight.
  [[nodiscard]] std::vector<Alias> aliases() const override;

  [[nodiscard]] const LlamaOptions& options() const { return options_; }

  LlamaModel model;
  torch::nn::Linear lm_head{nullptr};  // empty when tied

 private:
  at::Tensor head(const at::Tensor& x) const;

  LlamaOptions options_;
};
TORCH_MODULE(Llama);

}  // namespace lockstep::models

#pragma GCC visibility pop
