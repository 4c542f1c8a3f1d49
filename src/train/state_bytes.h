// How many bytes a rank's tensors have.
#pragma once

#include <lockstep/checkpoint/optimizer_state.h>

#include <cstdint>

namespace lockstep::train {

// Tensors that are not there count nothing.
[[nodiscard]] inline std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

[[nodiscard]] inline std::int64_t bytes_of(const checkpoint::NamedTensors& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += bytes_of(tensor);
  return bytes;
}

[[nodiscard]] inline std::int64_t bytes_with_gradients(
    const checkpoint::NamedParameters& parameters) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : parameters) bytes += bytes_of(tensor) + bytes_of(tensor.grad());
  return bytes;
}

}  // namespace lockstep::train
