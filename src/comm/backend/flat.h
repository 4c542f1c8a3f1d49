// The elements of a contiguous tensor as one dimension.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// A view with stride 1, which can be seen as another dtype. A tensor of one element or none is
// contiguous whatever its strides say, and view() keeps them.
[[nodiscard]] inline at::Tensor flat(const at::Tensor& tensor) {
  at::Tensor line = tensor.view({-1});
  return line.stride(0) == 1 ? line : line.as_strided({line.numel()}, {1});
}

}  // namespace lockstep
