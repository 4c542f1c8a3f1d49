#include "apps/bench/collectives/collectives.h"

#include "apps/bench/collectives/measure.h"
#include "apps/bench/collectives/peers.h"
#include "apps/bench/collectives/report.h"

#include <algorithm>
#include <span>
#include <vector>

namespace lockstep::apps {
namespace {

// The rows that the same processes measure.
std::span<const Row> of_same_ranks(std::span<const Row> rows) {
  auto end =
      std::ranges::find_if(rows, [&](const Row& row) { return row.ranks != rows.front().ranks; });
  return rows.first(end - rows.begin());
}

}  // namespace

void compare_collectives(const CollectivesOptions& options) {
  auto rows = rows_of(options);
  Peers peers(options);
  auto machine = measure_machine();
  if (!options.json) print_machine(machine);
  std::vector<MeasuredRow> measured;
  for (std::span<const Row> left = rows; !left.empty();) {
    auto same = of_same_ranks(left);
    auto contenders = peers.start(same.front().ranks);
    for (const Row& row : same) {
      measured.push_back(measure_row(row, contenders, options));
      options.json ? print_json(measured.back(), machine) : print_row(measured.back());
    }
    left = left.subspan(same.size());
  }
  if (!options.json) print_ratios(measured);
}

}  // namespace lockstep::apps
