// What `lockstep bench memory` is told, and what it tells its ranks.
#pragma once

#include "apps/bench/models.h"

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::apps {

struct MemoryOptions {
  // counters, pss, node-shared, limited; empty: all.
  std::vector<std::string> rows = {};
  int most_ranks = 4;                                        // of the counters: 1 to this
  MlpSizes counted{.width = 512, .depth = 8, .rows = 4};     // whose bytes are counted
  MlpSizes measured{.width = 2048, .depth = 48, .rows = 4};  // whose pages are measured: 201M
  MlpSizes limited{.width = 2048, .depth = 64, .rows = 4};   // three times a rank's memory: 269M
  int steps = 3;                                             // before anything is read
  bool json = false;
};

struct MemoryRankOptions {
  MlpSizes sizes;
};

}  // namespace lockstep::apps
