// Output of `lockstep bench collectives`: a table for people, or one JSON object per line.
#pragma once

#include "apps/bench/collectives/kinds.h"
#include "apps/bench/collectives/summary.h"

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::apps {

// One operation of one size on one backend and kind of memory.
struct CollectivesLine {
  Collective op = Collective::all_reduce;
  std::int64_t bytes = 0;
  int ranks = 1;
  Memory memory = Memory::ordinary;
  std::string engine;
  Summary seconds;
  // The shortest time in which the ranks read and wrote as many bytes as the operation must
  // (memory_bound.h). Only set if the tensors are larger than the caches.
  std::optional<double> bound;

  // Returns bytes of the tensor per second, at the median time; 0 for a barrier.
  [[nodiscard]] double algorithm_bandwidth() const;
  // Returns the algorithm bandwidth times bus_share().
  [[nodiscard]] double bus_bandwidth() const;
};

// `core_to_core` is in seconds; 0 with a single core.
void print_heading(int ranks, double core_to_core);
void print_line(const CollectivesLine& line, bool json);

}  // namespace lockstep::apps
