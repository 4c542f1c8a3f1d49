// Inputs that every rank can compute for every other rank, and their expected reductions, computed
// element by element in plain C++: the reference of the contract tests.
#pragma once

#include <lockstep/comm/call.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::test {

inline constexpr at::ScalarType numeric_dtypes[] = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,
    at::kChar,  at::kShort,  at::kInt,  at::kLong,     at::kBool};
inline constexpr at::ScalarType all_dtypes[] = {
    at::kFloat,  at::kDouble, at::kHalf,   at::kBFloat16,     at::kByte,         at::kChar,
    at::kShort,  at::kInt,    at::kLong,   at::kBool,         at::kComplexFloat, at::kComplexDouble,
    at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn};
inline constexpr Op all_ops[] = {Op::sum, Op::average, Op::product, Op::min,
                                 Op::max, Op::band,    Op::bor,     Op::bxor};

// Returns true if the contract defines `op` for `dtype`, one of numeric_dtypes.
[[nodiscard]] bool is_defined(Op op, at::ScalarType dtype);

// Returns `count` numbers that differ between ranks and elements; another `salt` gives other
// numbers.
[[nodiscard]] at::Tensor values(int rank, std::int64_t count, at::ScalarType dtype, int salt = 0);

// Returns the reduction of inputs[rank] in the order of the tree, as a rank must receive it.
[[nodiscard]] at::Tensor expected_reduction(const std::vector<at::Tensor>& inputs, Op op);

// Same for values(rank, count, dtype, salt) of `size` ranks.
[[nodiscard]] at::Tensor expected_reduction(int size, std::int64_t count, at::ScalarType dtype,
                                            Op op, int salt = 0);

// Returns true if sizes, dtypes and bits are equal.
[[nodiscard]] bool same_bits(const at::Tensor& a, const at::Tensor& b);
// Returns true if the values are equal up to the rounding of a sum in another order.
[[nodiscard]] bool close(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::test
