// Sizes, strides and dtypes of an operation's results, without its values: the device does not
// wait for the host to learn them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

namespace lockstep::test::accelerator {

// The results as meta tensors; nothing if the host must have the values to know the shapes. The
// arguments' tensors may be of the accelerator. Thread-safe. Throws the operation's own error for
// shapes that do not fit.
[[nodiscard]] std::optional<torch::jit::Stack> result_shapes(const c10::OperatorHandle& op,
                                                             const torch::jit::Stack& arguments);

// Replaces devices of the accelerator among the arguments.
void move_device_arguments(torch::jit::Stack& arguments, c10::Device device);

}  // namespace lockstep::test::accelerator
