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
  return {values.front(), quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75),
          values.back()};
}

Summary summary_of(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::ranges::sort(seconds);
  Summary summary{.min = seconds.front(),
                  .p50 = quantile(seconds, 0.5),
                  .max = seconds.back(),
                  .mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) /
                          static_cast<double>(seconds.size()),
                  .p99 = std::nullopt,
                  .calls = static_cast<int>(seconds.size())};
  if (summary.calls >= fewest_for_p99) summary.p99 = quantile(seconds, 0.99);
  return summary;
}

}  // namespace lockstep::apps
