// Operations of backends on tensors: views, sizes, and reductions in the order of the tree.
#pragma once

#include <lockstep/comm/call.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// Returns a view with stride 1, which can be viewed as another dtype. A tensor of at most one
// element is contiguous regardless of its strides, and view() keeps them.
[[nodiscard]] inline at::Tensor flat(const at::Tensor& tensor) {
  at::Tensor line = tensor.view({-1});
  return line.stride(0) == 1 ? line : line.as_strided({line.numel()}, {1});
}

// Returns the bytes of a tensor in host memory. Throws InvalidArgument for other devices and
// invalid sizes; `call` names the method.
[[nodiscard]] std::size_t host_bytes(std::string_view call, at::IntArrayRef sizes,
                                     const at::TensorOptions& options);

// Returns the tag of the operation with which ranks agree on a tensor of the host
// (Backend::empty_node_shared), so that different sizes are a Mismatch.
[[nodiscard]] std::string node_shared_tag(at::IntArrayRef sizes, const at::TensorOptions& options);

// Returns the combination of one value per rank (of equal sizes, dtypes and devices) as a new
// tensor: float for half and bfloat16, so that the value is rounded only when it is stored. Uses
// ATen: the plain form of what faster backends do, and their oracle.
[[nodiscard]] at::Tensor reduce_in_tree(std::span<const at::Tensor> values, Op op);

// Stores the same combination in `result`, rounded once. All tensors are contiguous and have the
// same size, dtype and device. Uses the kernels for host tensors.
void reduce_in_tree_into(const at::Tensor& result, std::span<const at::Tensor> values, Op op);

}  // namespace lockstep
