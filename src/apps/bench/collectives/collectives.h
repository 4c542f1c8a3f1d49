// `lockstep bench collectives`: how fast this machine's ranks call Group's operations, in the
// numbers that NVIDIA's nccl-tests print.
#pragma once

#include "apps/bench/collectives/kinds.h"

#include <lockstep/comm/group.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::apps {

struct CollectivesOptions {
  std::vector<std::string> ops{"all_reduce"};
  std::int64_t from = std::int64_t{1} << 10;  // bytes of the larger tensor of a rank
  std::int64_t to = std::int64_t{64} << 20;
  std::int64_t factor = 4;                 // from one size to the next
  std::vector<std::string> engines = {};   // empty: the one that init() chooses
  std::vector<std::string> memories = {};  // empty: all that the engine has
  int rounds = 10;                         // turns of each engine and kind of memory in a row
  double turn = 0.05;                      // seconds that a turn should take
  bool json = false;                       // one object a line instead of the table
  std::int64_t ranks = 0;                  // 0: as the launcher says, else 2
};

// from, from * factor, ... up to `to`; each even_bytes(). A barrier has no size: one row.
[[nodiscard]] std::vector<std::int64_t> sizes_of(const CollectivesOptions& options, Collective op,
                                                 int ranks);

// UsageError for options that are invalid for every number of ranks.
void check_options(const CollectivesOptions& options);

// Collective over `world`, of which rank 0 prints. Every operation is checked (values.h) on every
// engine, size and kind of memory before it is timed. Throws Error when a result is wrong, and
// BadInput where the tensors do not fit into the memory that is free.
void measure_collectives(const CollectivesOptions& options, Group world);

}  // namespace lockstep::apps
