// Tensors whose memory is what a file has of them: dense, in host memory, and not the conjugate or
// the negative of what lies there, which is a view to LibTorch, and contiguous too.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::checkpoint {

[[nodiscard]] inline bool lies_as_in_file(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// The tensor itself where it lies so, else a copy.
[[nodiscard]] inline at::Tensor as_in_file(const at::Tensor& tensor) {
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

}  // namespace lockstep::checkpoint
