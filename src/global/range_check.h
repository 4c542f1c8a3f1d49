// Checks of indices: a rank cannot tell an invalid index from one that another rank looks up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace lockstep::global {

// Throws InvalidArgument unless all of `values`, integers, are in [0, end). The message is
// `expected` and the value found. Values on a device may not be computed yet: instead of waiting
// for them, the device checks them and fails with `expected`, as PyTorch's kernels do (on CUDA by a
// device-side assertion).
void check_range(const at::Tensor& values, std::int64_t end, const std::string& expected);

}  // namespace lockstep::global
