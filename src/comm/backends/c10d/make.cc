#include "comm/backends/c10d/make.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/backend/blocking_backend.h"
#include "comm/backends/c10d/backend.h"
#include "sys/own_process.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace lockstep::c10d_backend {
namespace {

std::shared_ptr<C10dConnection> make_connection(std::string_view name,
                                                const std::shared_ptr<Store>& store, int rank,
                                                int size, const BackendOptions& options) {
  if (options.c10d) return make_custom(std::string(name), store, "world", rank, size, options);
  if (name == "gloo") return make_gloo(store, "world", rank, size, options);
  return make_nccl(store, rank, size, options);
}

}  // namespace

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

std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store, int rank,
                              int size, const BackendOptions& options) {
  auto runner = std::make_shared<C10dBackend>(make_connection(name, store, rank, size, options),
                                              store, rank, size, options);
  return sys::make_shared_of_process<BlockingBackend>(
      std::move(runner), std::move(store), GroupNames(), rank, size, options.join_timeout);
}

}  // namespace lockstep::c10d_backend
