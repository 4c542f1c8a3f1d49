#include "apps/bench/spread.h"

#include <algorithm>
#include <cmath>

namespace lockstep::apps {

double quantile(std::span<const double> sorted, double share) {
  double place = share * static_cast<double>(sorted.size() - 1);
  auto below = static_cast<std::size_t>(std::floor(place));
  std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return {values.front(), quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75),
          values.back()};
}

}  // namespace lockstep::apps
