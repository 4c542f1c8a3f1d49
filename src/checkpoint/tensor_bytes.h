// Tensors whose memory can be written to a file unchanged: dense, in host memory, and not one of
// the lazy forms that LibTorch also calls contiguous: the conjugate or negative of the values in
// memory, or a tensor of zeros without memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace lockstep::checkpoint {

[[nodiscard]] inline bool lies_as_in_file(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

// Returns the tensor itself if its memory has this form, else a copy.
[[nodiscard]] inline at::Tensor as_in_file(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.scalar_type());
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

}  // namespace lockstep::checkpoint
