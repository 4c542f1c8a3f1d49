// A contiguous tensor viewed as one dimension.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Returns a view with stride 1, which can be viewed as another dtype. A tensor of at most one
// element is contiguous regardless of its strides, and view() keeps them.
[[nodiscard]] inline at::Tensor flat(const at::Tensor& tensor) {
  at::Tensor line = tensor.view({-1});
  return line.stride(0) == 1 ? line : line.as_strided({line.numel()}, {1});
}

}  // namespace lockstep
