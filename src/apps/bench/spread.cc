#include "apps/bench/spread.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace lockstep::apps {
namespace {

// Returns the quantile for `share` (0 to 1) of a sorted, non-empty list, with linear interpolation
// between neighbours.
double quantile(std::span<const double> sorted, double share) {
  double place = share * static_cast<double>(sorted.size() - 1);
  auto below = static_cast<std::size_t>(std::floor(place));
  std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto calls = static_cast<int>(values.size());
  return {.min = values.front(),
          .p25 = quantile(values, 0.25),
          .p50 = quantile(values, 0.5),
          .p75 = quantile(values, 0.75),
          .max = values.back(),
          .mean = std::accumulate(values.begin(), values.end(), 0.0) / calls,
          .p99 = calls >= fewest_for_p99 ? std::optional(quantile(values, 0.99)) : std::nullopt,
          .calls = calls};
}

}  // namespace lockstep::apps
