// NCCL, where LibTorch comes with CUDA and the CUDA headers were found when this was built.
#pragma once

#include "comm/engines/c10d/engine.h"

#include <chrono>

namespace lockstep::c10d_engine {

struct NcclOptions {
  // Among the ranks of this machine: the number of the GPU, modulo how many this process sees, of a
  // rank whose first call has no tensor on one.
  int local_rank = 0;
  Duration join_timeout = std::chrono::minutes(5);
};

// Meets size - 1 peers in the store. Blocks until all have come; the GPUs connect in the first
// call. BadInput in a build without NCCL, where a rank sees no GPU, and where two would share one;
// Timeout when the peers do not come.
[[nodiscard]] std::shared_ptr<Engine> make_nccl(const std::shared_ptr<Store>& store, int rank,
                                                int size, NcclOptions options);

}  // namespace lockstep::c10d_engine
