// Elements of tensors by slices (lockstep/layout/tensor_slice.h).
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::modules {

// How the elements of a dense tensor lie in memory; empty: row-major.
[[nodiscard]] std::vector<int> dim_order_of(at::IntArrayRef sizes, at::IntArrayRef strides);

// A box of a slice, as a view of the tensor of one dimension that holds the slice's elements, and
// as a view of the whole.
[[nodiscard]] at::Tensor box_in_part(const at::Tensor& part, const layout::TensorSlice& slice,
                                     const layout::Box& box);
[[nodiscard]] at::Tensor box_in_whole(const at::Tensor& whole, const layout::Box& box);

}  // namespace lockstep::modules
