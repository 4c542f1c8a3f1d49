// `lockstep-measure memory`: the memory of a rank in each of our modes, by the library's counters
// and by Linux, next to the expected value.
#pragma once

#include "measure/models.h"

#include <lockstep/comm/group.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::bench {

struct MemoryOptions {
  std::vector<std::string> modes = {};  // modes of step.h; empty: all
  std::vector<std::string> dtypes{"float32", "bfloat16"};
  ModelSize size{.width = 512, .depth = 8, .rows = 4};  // of the mlp
  bool deferred = false;                                // make the model by deferred()
  int steps = 3;                                        // steps before the first reading
  bool json = false;                                    // one JSON object per row
  std::int64_t ranks = 0;                               // 0: as the launcher says, otherwise 2
};

// Measures, and prints one row per mode and dtype on rank 0. Collective over `world`. Pages of a
// mode that was measured earlier may still be mapped: for an exact proportional set size, measure
// one mode per process.
void measure_memory(const MemoryOptions& options, const Group& world);

}  // namespace lockstep::bench
