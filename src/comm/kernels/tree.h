// The order of every sum: a balanced binary tree over rank numbers. combine(lo, hi) = combine(lo,
// lo + k) with combine(lo + k, hi), k being the largest power of two below hi - lo.
#pragma once

#include <bit>

namespace lockstep {

// The number of leaves of the left branch over `leaves` >= 2 of them.
[[nodiscard]] constexpr int left_branch(int leaves) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(leaves - 1)));
}

}  // namespace lockstep
