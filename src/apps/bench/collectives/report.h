// How `lockstep bench collectives` prints: a table for people, or one JSON object a line.
#pragma once

#include "apps/bench/collectives/kinds.h"
#include "apps/bench/collectives/summary.h"

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::apps {

// One operation of one size on one engine and kind of tensors.
struct CollectivesLine {
  Collective op = Collective::all_reduce;
  std::int64_t bytes = 0;
  int ranks = 1;
  Memory memory = Memory::ordinary;
  std::string engine;
  Summary seconds;
  // The least seconds in which the ranks read and wrote as many bytes as the operation must
  // (memory_bound.h); where the tensors are larger than the caches.
  std::optional<double> bound;

  // Bytes of the tensor a second, at the median; 0 for a barrier.
  [[nodiscard]] double algorithm_bandwidth() const;
  // That times bus_share().
  [[nodiscard]] double bus_bandwidth() const;
};

// `core_to_core`: seconds; 0 where there is one core.
void print_heading(int ranks, double core_to_core);
void print_line(const CollectivesLine& line, bool json);

}  // namespace lockstep::apps
