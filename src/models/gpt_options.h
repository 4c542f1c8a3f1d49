// Shared by models made of GptBlocks: validation of their options, and initial weights.
#pragma once

#include <lockstep/models/gpt.h>

#include <torch/nn/module.h>

#include <cstdint>

namespace lockstep::models {

// Returns `options`. Throws InvalidArgument if an option is invalid; the message begins with `what`
// and names the option.
[[nodiscard]] GptOptions checked(GptOptions options, const char* what);

// Initialises weights as documented for GptImpl (lockstep/models/gpt.h), and experts like the
// layers that they replace.
void draw_weights(torch::nn::Module& module, std::int64_t layers);

}  // namespace lockstep::models
