// One row: every system in turn, round after round, so that what disturbs the machine disturbs all
// of them.
#pragma once

#include "apps/bench/collectives/options.h"
#include "apps/bench/collectives/peers.h"

#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

// Seconds a call.
struct Summary {
  double min = 0, p50 = 0, p99 = 0, mean = 0;
  int calls = 0;
};
[[nodiscard]] Summary summary_of(std::vector<double> seconds);

// What one system needed, on one kind of tensors.
struct Line {
  std::string backend;  // "shm", or the name of a peer
  std::string library;
  Memory memory = Memory::ordinary;
  Summary seconds;
  std::vector<double> medians;  // of each round
};

struct MeasuredRow {
  Row row;
  std::vector<Line> lines;  // ours, then the peers
  // This run's memory bandwidth, reading as much as writing, in the turns of this row: what an
  // allreduce in place is bounded by. Only where the tensors are larger than the caches.
  std::optional<double> bytes_per_second;

  // The lower bound 2pn/B of an allreduce in place.
  [[nodiscard]] std::optional<double> bound_seconds() const;
  [[nodiscard]] const Line* find(std::string_view backend, Memory memory) const;
  // p50 of `other` over p50 of ours on such tensors; nothing when one of them was not measured.
  [[nodiscard]] std::optional<double> ratio(std::string_view other, Memory ours) const;
};

[[nodiscard]] MeasuredRow measure_row(const Row& row, Contenders& contenders,
                                      const CollectivesOptions& options);

}  // namespace lockstep::apps
