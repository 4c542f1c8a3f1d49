// Gpt: nanoGPT's language model (github.com/karpathy/nanoGPT, model.py) as a plain torch::nn
// module.
//
// Parameters have the names of the Python module: transformer.wte.weight, transformer.wpe.weight,
// transformer.h.0.ln_1.weight, transformer.h.0.attn.c_attn.weight, ..., transformer.ln_f.weight.
// The head's weight is the token embedding's: it is registered once, as transformer.wte.weight, and
// exported also as lm_head.weight (module/state_dict.h).
#pragma once

#include <lockstep/models/generate.h>
#include <lockstep/models/gpt_block.h>
#include <lockstep/module/state_dict.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::models {

// Everything below the head: embeddings, blocks, last normalisation.
class GptTransformerImpl : public torch::nn::Module {
 public:
  explicit GptTransformerImpl(const GptOptions& options);
  // [rows, tokens] int64 -> [rows, tokens, width].
  at::Tensor forward(const at::Tensor& ids);

  torch::nn::Embedding wte;  // tokens
  torch::nn::Embedding wpe;  // positions
  torch::nn::Dropout drop;
  torch::nn::ModuleList h;
  GptLayerNorm ln_f;
};
TORCH_MODULE(GptTransformer);

class GptImpl : public torch::nn::Module, public HasAliases {
 public:
  // Draws initial weights from LibTorch's default generator: normal with standard deviation 0.02,
  // the projections that end in the residual stream divided by sqrt(2 * layers); biases 0.
  // InvalidArgument names an option that makes no sense.
  explicit GptImpl(GptOptions options = {});

  // [rows, tokens] int64 -> logits [rows, tokens, vocabulary]. InvalidArgument when a row is longer
  // than the block.
  at::Tensor forward(const at::Tensor& ids);

  // Mean cross-entropy, in nats, of the tokens that follow: `targets` has ids' shape, and -1 where
  // nothing is to be predicted. NaN when nothing is.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);

  // `ids` with `count` tokens drawn behind it (generate.h).
  at::Tensor generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options = {});

  // lm_head.weight is transformer.wte.weight.
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
