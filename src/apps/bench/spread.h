// Statistics of a few measurements.
#pragma once

#include <optional>
#include <vector>

namespace lockstep::apps {

struct Spread {
  double min = 0, p25 = 0, p50 = 0, p75 = 0, max = 0;
};

// Computes quantiles with linear interpolation between neighbours; all 0 for an empty list.
[[nodiscard]] Spread spread_of(std::vector<double> values);

// Summary statistics of the seconds per call.
struct Summary {
  double min = 0, p50 = 0, max = 0, mean = 0;
  std::optional<double> p99;  // not set below fewest_for_p99 calls
  int calls = 0;
};

// With fewer values, the 99th percentile would be the largest or second-largest value.
inline constexpr int fewest_for_p99 = 200;

// Returns all zeros for no calls.
[[nodiscard]] Summary summary_of(std::vector<double> seconds);

}  // namespace lockstep::apps
