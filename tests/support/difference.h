// Differences of numbers for parity tests. They are never NaN: std::max(largest, NaN) is `largest`,
// so a maximum over differences would lose a NaN, and the test would pass.
#pragma once

#include <cmath>
#include <limits>

namespace lockstep::test {

// Returns `difference`, or infinity if it is NaN.
inline double nan_as_infinity(double difference) {
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

// Returns |found - expected| / |expected|; 0 if both are equal.
inline double relative_difference(double found, double expected) {
  if (found == expected) return 0;
  return nan_as_infinity(std::abs(found - expected) / std::abs(expected));
}

}  // namespace lockstep::test
