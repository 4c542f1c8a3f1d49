// The ranks of a group as a list.
#pragma once

#include <numeric>
#include <vector>

namespace lockstep {

// Returns 0, 1, ..., size - 1.
[[nodiscard]] inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace lockstep
