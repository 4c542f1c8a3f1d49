// Pseudo-random numbers from a seed, the same in every process.
#pragma once

#include "base/fingerprint.h"

#include <cstdint>

namespace lockstep::test {

class DrawnNumbers {
 public:
  explicit DrawnNumbers(std::uint64_t seed) : state_(seed) {}
  // Returns a number from 0 to limit - 1.
  int below(int limit) {
    state_ = combine_fingerprints(state_, 1);
    return static_cast<int>(state_ % static_cast<std::uint64_t>(limit));
  }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep::test
