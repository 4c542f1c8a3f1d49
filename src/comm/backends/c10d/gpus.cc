#include "comm/backends/c10d/gpus.h"

#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <vector>

namespace lockstep::c10d_backend {

void check_gpus(std::span<const std::string> gpus) {
  std::vector<int> without;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    if (gpus[rank].empty()) without.push_back(static_cast<int>(rank));
  }
  if (!without.empty())
    throw BadInput(
        formatted("the backend nccl: expected a GPU in every rank's process, found none in {} of "
                  "{}: is there "
                  "an NVIDIA driver, and what does CUDA_VISIBLE_DEVICES say?",
                  rank_list(without), gpus.size()));
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    auto other = std::ranges::find(gpus.first(rank), gpus[rank]) - gpus.begin();
    if (other == static_cast<std::ptrdiff_t>(rank)) continue;
    throw BadInput(
        formatted("the backend nccl: expected a GPU for each rank, found ranks {} and {} on one "
                  "({}); shm and gloo let ranks share a GPU",
                  other, rank, gpus[rank]));
  }
}

}  // namespace lockstep::c10d_backend
