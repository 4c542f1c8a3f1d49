// What the strategies that are given another one as a function share.
#pragma once

#include "parallel/tensor/tensor_state.h"

#include <lockstep/parallel/tensor/tensor_parallel.h>

#include <ATen/core/Tensor.h>

namespace lockstep::tensor_parallel {

// What the strategy of the options makes of the parts; not attached where there is none.
[[nodiscard]] Handle handle_of_parts(const TensorParallelState& state,
                                     const TensorParallelOptions& options);
void check_options(const TensorParallelOptions& options);

// A plain batch as a global tensor that is cut along `cp`.
[[nodiscard]] at::Tensor cut_sequence(const at::Tensor& batch, const Mesh& tensors, Placement cut);

}  // namespace lockstep::tensor_parallel
