// Tensors whose memory is what a file has of them: dense, in host memory, and neither the conjugate
// nor the negative of the values there, nor a tensor of zeros without memory, all of which LibTorch
// calls contiguous.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace lockstep::checkpoint {

[[nodiscard]] inline bool lies_as_in_file(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

// The tensor itself where it lies so, else a copy.
[[nodiscard]] inline at::Tensor as_in_file(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.scalar_type());
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

}  // namespace lockstep::checkpoint
