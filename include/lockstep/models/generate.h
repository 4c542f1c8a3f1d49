// Drawing tokens from a language model, one at a time.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>

#pragma GCC visibility push(default)

namespace lockstep::models {

struct GenerateOptions {
  double temperature = 1.0;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // draw among the k likeliest only; 0: among all
  // Draw each token from all tokens before it, though they are more than the block; for models
  // without a table of positions. false: from the last `block` tokens.
  bool beyond_block = false;
  // The default generator of the model's device when absent.
  std::optional<at::Generator> generator = std::nullopt;
};

// Logits [rows, vocabulary] of the token behind `ids` ([rows, 1 to block tokens]).
using NextLogits = std::function<at::Tensor(const at::Tensor& ids)>;

// `ids` ([rows, tokens], at least one token) with `count` tokens drawn behind it, each from the
// last `block` tokens or, with beyond_block, from all. Without gradients; `model` is in evaluation
// mode meanwhile, and each of its modules in its own mode afterwards. InvalidArgument for ids or
// options that make no sense.
[[nodiscard]] at::Tensor generate_tokens(torch::nn::Module& model, at::Tensor ids,
                                         std::int64_t count, std::int64_t block,
                                         const GenerateOptions& options,
                                         const NextLogits& next_logits);

}  // namespace lockstep::models

#pragma GCC visibility pop
