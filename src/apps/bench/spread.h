// Statistics of a few measurements.
#pragma once

#include <optional>
#include <vector>

namespace lockstep::apps {

// With fewer values, the 99th percentile would be the largest or second-largest value.
inline constexpr int fewest_for_p99 = 200;

struct Spread {
  double min = 0, p25 = 0, p50 = 0, p75 = 0, max = 0;
  double mean = 0;
  std::optional<double> p99;  // not set below fewest_for_p99 values
  int calls = 0;              // how many values
};

// Computes quantiles with linear interpolation between neighbours; all 0 for an empty list.
[[nodiscard]] Spread spread_of(std::vector<double> values);

}  // namespace lockstep::apps
