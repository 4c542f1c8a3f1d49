// Combining the ranks' values element by element: the arithmetic of reductions.
//
// The order is a balanced binary tree over rank numbers (left_branch). Sums begin with values,
// never with 0. float16 and bfloat16 are combined in float32 and rounded once. Integers wrap
// around. NaN wins in min and max, as in torch.minimum and torch.maximum. An average is one
// division after the sum.
#pragma once

#include <lockstep/comm/call.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

// The order of every sum: a balanced binary tree over rank numbers. combine(lo, hi) = combine(lo,
// lo + k) with combine(lo + k, hi), k being the largest power of two below hi - lo.
//
// Returns the number of leaves in the left branch of a tree of `leaves` >= 2 leaves.
[[nodiscard]] constexpr int left_branch(int leaves) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(leaves - 1)));
}

namespace kernels {

inline constexpr int max_ranks = 256;

// Returns true if `op` is defined for `dtype`, a type of real numbers: averages need floating
// point, bitwise operations need integers. Complex numbers are combined as pairs of real numbers.
[[nodiscard]] bool can_combine(DType dtype, Op op);

struct Combination {
  DType dtype;
  Op op;
  std::span<const std::byte* const> inputs;  // one per rank, in rank order, at most max_ranks
  std::span<std::byte* const> outputs;       // each gets the result; may be one of the inputs
  std::int64_t elements;
  bool stream = false;  // use non-temporal stores
};
void combine(const Combination& combination);

// Copies between ranges that do not overlap. `stream` as in Combination: for blocks that are larger
// than the caches and are not read again soon. Other threads see the bytes as after ordinary
// writes.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool stream);

}  // namespace kernels
}  // namespace lockstep
