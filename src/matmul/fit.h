// Selects the products that oneDNN computes: float32 matrices in CPU memory that are stored by row
// or by column without gaps, and large enough to be worth the ten microseconds of a oneDNN call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::matmul {

// The number of multiplications above which oneDNN is not slower than MKL, measured with one and
// two threads: docs/decisions/0110-which-library-multiplies.md.
inline constexpr std::int64_t least_multiplications = std::int64_t{1} << 21;
// Products with a vector are memory-bound, and MKL has special kernels for them.
inline constexpr std::int64_t least_size = 4;

enum class Order { rows, columns };  // stored row by row, or column by column

// Returns the storage order of a matrix, or of all matrices of a batch without gaps between them.
// Returns std::nullopt if the tensor has neither order.
[[nodiscard]] std::optional<Order> order_of(const at::Tensor& tensor);

// Returns true if the product of a [m, k] and b [k, n], or of batches of them, goes to oneDNN.
[[nodiscard]] bool fit(const at::Tensor& a, const at::Tensor& b);
// Returns true if `bias` can be added to every row of a product with `columns` columns.
[[nodiscard]] bool is_bias(const at::Tensor& bias, std::int64_t columns);

}  // namespace lockstep::matmul
