// Which products oneDNN computes: those of float32 matrices in the CPU's memory that lie row by row
// or column by column without gaps, and that are so large that its call, which takes ten
// microseconds, pays.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::matmul {

// Multiplications from which on oneDNN is not slower than MKL, measured with one and two threads:
// docs/decisions/0110-which-library-multiplies.md.
inline constexpr std::int64_t least_multiplications = std::int64_t{1} << 21;
// Products with a vector are bound by memory, and MKL has ways of their own for them.
inline constexpr std::int64_t least_size = 4;

enum class Order { rows, columns };  // what lies together

// Of a matrix, or of each matrix of a batch, without gaps between them either. Absent: neither.
[[nodiscard]] std::optional<Order> order_of(const at::Tensor& tensor);

// a [m, k] times b [k, n], or batches of both.
[[nodiscard]] bool fit(const at::Tensor& a, const at::Tensor& b);
// What is added to every row of a product of n columns.
[[nodiscard]] bool is_bias(const at::Tensor& bias, std::int64_t columns);

}  // namespace lockstep::matmul
