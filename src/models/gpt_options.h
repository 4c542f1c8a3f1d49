// What models made of GptBlocks share: their options' checks, and how weights begin.
#pragma once

#include <lockstep/models/gpt_block.h>

#include <torch/nn/module.h>

#include <cstdint>

namespace lockstep::models {

// InvalidArgument, which begins with `what`, names an option that makes no sense.
[[nodiscard]] GptOptions checked(GptOptions options, const char* what);

// As GptImpl says (lockstep/models/gpt.h); experts as the layers that they stand for.
void draw_weights(torch::nn::Module& module, std::int64_t layers);

}  // namespace lockstep::models
