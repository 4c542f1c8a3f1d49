// Tensors of state in their formats: reading them as plain float32, and writing them back.
#pragma once

#include "optim/formats_kernel.h"

#include <lockstep/optim/update_options.h>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

[[nodiscard]] StateFormat format_of(const at::Tensor& values);

// float32 in the layout of `values`; the tensor itself where it is wider than 16 bits. `scales` is
// undefined but for blocks.
[[nodiscard]] at::Tensor expanded(const at::Tensor& values, const at::Tensor& scales, Codes codes);

// The dtype in which a format keeps its values, and how many scales go with `count` of them.
[[nodiscard]] at::ScalarType dtype_of(StateFormat format);
[[nodiscard]] std::int64_t scales_of(StateFormat format, std::int64_t count);

// Rounds plain values to nearest into tensors of the format; what expanded() gave comes back.
struct Compressed {
  at::Tensor values, scales;
};
[[nodiscard]] Compressed compressed(const at::Tensor& plain, StateFormat format, Codes codes);

}  // namespace lockstep::optim
