// Shared by the language models Gpt, Moe and Llama, and by mixtures of experts.
#pragma once

#include <lockstep/models/gpt.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

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

// Multiplies each of several groups of rows by the group's own matrix, such as an expert's: maps
// rows [n, in] and weight [groups, out, in] to [n, out]. The first counts[0] rows belong to the
// first group, the next counts[1] to the second, and so on. Differentiable once.
[[nodiscard]] at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight,
                                        const std::vector<std::int64_t>& counts);

// Returns the elements of an int64 tensor on any device, such as counts for grouped_linear(). Waits
// for the device.
[[nodiscard]] std::vector<std::int64_t> numbers_of(const at::Tensor& counts);

}  // namespace lockstep::models
