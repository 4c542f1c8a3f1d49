// How a handful of measurements spread.
#pragma once

#include <span>
#include <vector>

namespace lockstep::apps {

struct Spread {
  double min = 0, p25 = 0, p50 = 0, p75 = 0, max = 0;
};

// Quantiles with linear interpolation between neighbours; all 0 for no values.
[[nodiscard]] Spread spread_of(std::vector<double> values);

}  // namespace lockstep::apps
