// Divides the rows of a mini-batch among devices.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace lockstep::threads {

// Returns, for each device, its rows of every input, as views; empty for a device without rows.
// Throws InvalidArgument for inputs of different lengths, no inputs, inputs without rows, or inputs
// that require grad.
[[nodiscard]] std::vector<std::vector<at::Tensor>> scatter(std::span<const at::Tensor> inputs,
                                                           int devices);

}  // namespace lockstep::threads
