// Sizes, strides and dtypes of an operation's results, computed without values, so that the host
// need not wait for the device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

namespace lockstep::test::accelerator {

// Returns the results as meta tensors; std::nullopt if shapes depend on values. Arguments may be
// tensors on the accelerator. Throws the operation's own error for shapes that do not fit.
// Thread-safe.
[[nodiscard]] std::optional<torch::jit::Stack> result_shapes(const c10::OperatorHandle& op,
                                                             const torch::jit::Stack& arguments);

// Replaces device arguments that name the accelerator by `device`.
void move_device_arguments(torch::jit::Stack& arguments, c10::Device device);

}  // namespace lockstep::test::accelerator
