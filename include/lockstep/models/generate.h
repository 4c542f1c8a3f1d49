// Samples tokens from a language model, one at a time.
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
  double temperature = 1.0;  // 0: always take the most likely token
  std::int64_t top_k = 0;    // sample from the k most likely tokens; 0: from all
  // If true, each token is computed from all tokens before it, even if there are more than `block`;
  // for models without a position table. If false, from the last `block` tokens.
  bool beyond_block = false;
  // May be on a device other than the model's. If absent, uses the default generator of the model's
  // device.
  std::optional<at::Generator> generator = std::nullopt;
};

// Returns the logits [rows, vocabulary] of the token that follows `ids` ([rows, 1 to block
// tokens]).
using NextLogits = std::function<at::Tensor(const at::Tensor& ids)>;

// Returns `ids` ([rows, tokens], at least one token) followed by `count` sampled tokens. Each token
// is computed from the last `block` tokens or, with beyond_block, from all tokens before it. `ids`
// may be on another device than the model; the result is on the device of `ids`. Runs without
// gradients and with `model` in evaluation mode, and restores the mode of each module at the end.
// Throws InvalidArgument for invalid ids or options.
[[nodiscard]] at::Tensor generate_tokens(torch::nn::Module& model, at::Tensor ids,
                                         std::int64_t count, std::int64_t block,
                                         const GenerateOptions& options,
                                         const NextLogits& next_logits);

}  // namespace lockstep::models

#pragma GCC visibility pop
