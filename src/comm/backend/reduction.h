// Reductions with ATen in the order of the tree: the plain form of what faster engines do, and
// their oracle.
#pragma once

#include <lockstep/comm/op.h>

#include <ATen/core/Tensor.h>

#include <span>

namespace lockstep {

// The combination of one value a rank (equal sizes, dtypes and devices) in a tensor of its own:
// float for half and bfloat16, so that it is rounded once, when it is stored.
[[nodiscard]] at::Tensor reduce_in_tree(std::span<const at::Tensor> values, Op op);

}  // namespace lockstep
