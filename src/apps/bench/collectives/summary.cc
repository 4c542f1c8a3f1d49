#include "apps/bench/collectives/summary.h"

#include "apps/bench/spread.h"

#include <algorithm>
#include <numeric>

namespace lockstep::apps {

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
