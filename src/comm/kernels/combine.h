// Combining the ranks' values element by element: the arithmetic of reductions.
//
// The order is a balanced binary tree over rank numbers (left_branch) and starts from values, never
// from 0. float16 and bfloat16 are combined in float32 and rounded once. Integers wrap around. NaN
// wins in min and max, as in torch.minimum and torch.maximum. An average is one division after the
// sum.
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
// The number of leaves of the left branch over `leaves` >= 2 of them.
[[nodiscard]] constexpr int left_branch(int leaves) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(leaves - 1)));
}

namespace kernels {

inline constexpr int max_ranks = 256;

// Returns true if `op` is defined for `dtype`: an average needs fractions, bitwise operations need
// integers, an order needs real numbers.
[[nodiscard]] bool can_combine(DType dtype, Op op);

struct Combination {
  DType dtype;
  Op op;
  std::span<const std::byte* const> inputs;  // one a rank, in rank order, at most max_ranks
  std::span<std::byte* const> outputs;  // each gets the result; one may be an input, at its place
  std::int64_t elements;
  bool stream = false;  // store around the caches
};
void combine(const Combination& combination);

// The copy that goes with it.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool stream);

}  // namespace kernels
}  // namespace lockstep
