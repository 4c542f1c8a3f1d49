// What engines share that let all ranks of a host have one tensor (Backend::empty_node_shared).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>

namespace lockstep {

// Bytes of a tensor in host memory. InvalidArgument for other devices and sizes that make no sense;
// `call` names the method.
[[nodiscard]] std::size_t host_bytes(std::string_view call, at::IntArrayRef sizes,
                                     const at::TensorOptions& options);

// The tag of the operation by which ranks agree on such a tensor, so that different sizes are a
// Mismatch.
[[nodiscard]] std::string node_shared_tag(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace lockstep
