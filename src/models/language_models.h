// Shared by the language models Gpt, Moe and Llama.
#pragma once

#include <lockstep/models/gpt.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace lockstep::models {

[[nodiscard]] torch::nn::Linear linear_layer(std::int64_t from, std::int64_t to, bool bias);

// Throws InvalidArgument, which begins with `what`, unless `ids` is [rows, tokens] with at most
// `context_length` tokens.
void check_ids(const at::Tensor& ids, std::int64_t context_length, const char* what);

// Returns the mean cross-entropy of the next tokens, as documented for GptImpl::loss().
[[nodiscard]] at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets);

// For models made of GptBlocks: returns `options`. Throws InvalidArgument if an option is invalid;
// the message begins with `what` and names the option.
[[nodiscard]] GptOptions checked(GptOptions options, const char* what);

// Initialises weights as documented for GptImpl (lockstep/models/gpt.h), and experts like the
// layers that they replace.
void draw_weights(torch::nn::Module& module, std::int64_t layers);

}  // namespace lockstep::models
