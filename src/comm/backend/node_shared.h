// Helpers for engines that give all ranks of a host one tensor (Backend::empty_node_shared).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>

namespace lockstep {

// Returns the bytes of a tensor in host memory. Throws InvalidArgument for other devices and
// invalid sizes; `call` names the method.
[[nodiscard]] std::size_t host_bytes(std::string_view call, at::IntArrayRef sizes,
                                     const at::TensorOptions& options);

// Returns the tag of the operation with which ranks agree on such a tensor, so that different sizes
// are a Mismatch.
[[nodiscard]] std::string node_shared_tag(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace lockstep
