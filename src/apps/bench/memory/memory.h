// `lockstep bench memory`: what a rank holds in each of our modes, by counters and as Linux counts
// it, beside what the formula says.
#pragma once

#include "apps/bench/models.h"

#include <lockstep/comm/group.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::apps {

struct MemoryOptions {
  std::vector<std::string> modes = {};  // of training.h; empty: all
  std::vector<std::string> dtypes{"float32", "bfloat16"};
  ModelSize size{.width = 512, .depth = 8, .rows = 4};  // of mlp
  bool deferred = false;                                // made by deferred()
  int steps = 3;                                        // before anything is read
  bool json = false;                                    // one object a row
  std::int64_t ranks = 0;                               // 0: as the launcher says, else 2
};

// Collective over `world`, of which rank 0 prints, one row a mode and dtype. Pages of a mode that
// was measured before may still be there: for the proportional set size name one mode a call.
void measure_memory(const MemoryOptions& options, const Group& world);

}  // namespace lockstep::apps
