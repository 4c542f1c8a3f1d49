// How a handful of measurements spread.
#pragma once

#include <span>
#include <vector>

namespace lockstep::apps {

struct Spread {
  double min = 0, p25 = 0, p50 = 0, p75 = 0, max = 0;
};

// The value below which that share (0 to 1) of sorted, at least one, values lies; linear
// interpolation between neighbours.
[[nodiscard]] double quantile(std::span<const double> sorted, double share);

// Quantiles with linear interpolation between neighbours; all 0 for no values.
[[nodiscard]] Spread spread_of(std::vector<double> values);

}  // namespace lockstep::apps
