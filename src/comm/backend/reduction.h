// Reductions of tensors in the order of the tree: with ATen, which is the plain form of what faster
// engines do, and their oracle; and with the kernels.
#pragma once

#include <lockstep/comm/call.h>

#include <ATen/core/Tensor.h>

#include <span>

namespace lockstep {

// The combination of one value a rank (equal sizes, dtypes and devices) in a tensor of its own:
// float for half and bfloat16, so that it is rounded once, when it is stored.
[[nodiscard]] at::Tensor reduce_in_tree(std::span<const at::Tensor> values, Op op);

// Stores the same combination in `result`, rounded once. All tensors are contiguous and have one
// size, dtype and device. Uses the kernels (comm/kernels/combine.h) for tensors of the host.
void reduce_in_tree_into(const at::Tensor& result, std::span<const at::Tensor> values, Op op);

}  // namespace lockstep
