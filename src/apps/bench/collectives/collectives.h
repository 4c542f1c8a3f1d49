// `lockstep bench collectives`: measures Group's operations between ranks of this host, and prints
// the metrics of NVIDIA's nccl-tests.
#pragma once

#include "apps/bench/collectives/kinds.h"

#include <lockstep/comm/group.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::apps {

struct CollectivesOptions {
  std::vector<std::string> ops{"all_reduce"};
  std::int64_t from = std::int64_t{1} << 10;  // bytes of a rank's larger tensor
  std::int64_t to = std::int64_t{64} << 20;
  std::int64_t factor = 4;                 // from one size to the next
  std::vector<std::string> backends = {};  // empty: the default of init()
  std::vector<std::string> memories = {};  // empty: all kinds of the backend and the device
  std::string device = {};                 // as InitOptions::device
  int rounds = 10;                         // turns per backend and kind of memory
  double turn = 0.05;                      // intended seconds per turn
  bool json = false;                       // one JSON object per line instead of the table
  std::int64_t ranks = 0;                  // 0: as the launcher says, otherwise 2
};

// Returns from, from * factor, ... up to `to`, each rounded by even_bytes(). A barrier has no size,
// and a single row.
[[nodiscard]] std::vector<std::int64_t> sizes_of(const CollectivesOptions& options, Collective op,
                                                 int ranks);

// Throws UsageError for options that are invalid for every number of ranks.
void check_options(const CollectivesOptions& options);

// Measures, and prints on rank 0. Collective over `world`, whose ranks have their tensors on
// `device`. Each operation is checked (kinds.h) on each backend, size and kind of memory before it
// is timed. Throws Error if a result is wrong, and BadInput if the tensors do not fit into free
// memory, or the device has no tensors of a chosen kind.
void measure_collectives(const CollectivesOptions& options, Group world, c10::Device device);

}  // namespace lockstep::apps
