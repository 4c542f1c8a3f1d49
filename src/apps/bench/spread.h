// Statistics of a few measurements.
#pragma once

#include <span>
#include <vector>

namespace lockstep::apps {

struct Spread {
  double min = 0, p25 = 0, p50 = 0, p75 = 0, max = 0;
};

// Returns the quantile for `share` (0 to 1) of a sorted, non-empty list, with linear interpolation
// between neighbours.
[[nodiscard]] double quantile(std::span<const double> sorted, double share);

// Computes quantiles with linear interpolation between neighbours; all 0 for an empty list.
[[nodiscard]] Spread spread_of(std::vector<double> values);

}  // namespace lockstep::apps
