// A mini-batch, cut into rows for devices.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace lockstep::threads {

// For each device its rows of every input; nothing for a device without rows. Views of the inputs.
// InvalidArgument: inputs of different lengths, none, without rows, or that require a gradient.
[[nodiscard]] std::vector<std::vector<at::Tensor>> scatter(std::span<const at::Tensor> inputs,
                                                           int devices);

}  // namespace lockstep::threads
