// Matrix multiplication through the oneDNN build inside LibTorch, whose own interface
// libtorch_cpu.so does not export.
//
// oneDNN compiles a kernel for each shape, which takes about a millisecond and half a megabyte, and
// caches 1024 kernels (ONEDNN_PRIMITIVE_CACHE_CAPACITY). A program whose batches vary in length
// would compile new kernels all the time. The dim that counts tokens or rows of a batch is
// therefore cut into pieces with five significant bits: 1000 rows become 992 and 8. All lengths up
// to 4096 then need kernels of only 144 sizes, most round lengths are one piece, and results depend
// only on the shapes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace lockstep::matmul {

// The number of multiplications above which oneDNN is not slower than MKL, measured with one and
// two threads: docs/decisions/0110-which-library-multiplies.md.
inline constexpr std::int64_t least_multiplications = std::int64_t{1} << 21;
// Products with a vector are memory-bound, and MKL has special kernels for them.
inline constexpr std::int64_t least_size = 4;

// Products that oneDNN computes: float32 matrices in CPU memory that are stored by row or by column
// without gaps, and large enough to be worth the ten microseconds of a oneDNN call.

enum class Order { rows, columns };  // stored row by row, or column by column

// Returns the storage order of a matrix, or of all matrices of a batch without gaps between them.
// Returns std::nullopt if the tensor has neither order.
[[nodiscard]] std::optional<Order> order_of(const at::Tensor& tensor);

// Returns true if the product of a [m, k] and b [k, n], or of batches of them, goes to oneDNN.
[[nodiscard]] bool fit(const at::Tensor& a, const at::Tensor& b);
// Returns true if `bias` can be added to every row of a product with `columns` columns.
[[nodiscard]] bool is_bias(const at::Tensor& bias, std::int64_t columns);

}  // namespace lockstep::matmul

namespace lockstep::matmul::onednn {

// Returns an empty string if oneDNN can be used, otherwise a short reason. The first call takes a
// few milliseconds: it computes small products with known results.
[[nodiscard]] const std::string& missing();

// Returns the size of the first piece of `count` rows: the largest number up to `count` with five
// significant bits.
[[nodiscard]] std::int64_t next_piece(std::int64_t count);

// Returns a times b, plus `bias` in every row if given. The arguments must fit(), and
// missing() must be empty.
[[nodiscard]] at::Tensor product(const at::Tensor& a, const at::Tensor& b,
                                 const std::optional<at::Tensor>& bias = {});

}  // namespace lockstep::matmul::onednn
