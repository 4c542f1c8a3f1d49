#include "comm/init/backends.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "comm/engines/c10d/make.h"
#include "comm/engines/hierarchical/runner.h"
#include "comm/engines/mpi/backend.h"
#include "comm/engines/shm/backend.h"
#include "comm/init/choice.h"

#include <algorithm>
#include <span>
#include <utility>

namespace lockstep {
namespace {

std::shared_ptr<Backend> make_hierarchical(std::string_view across, std::shared_ptr<Store> store,
                                           int rank, int size, const BackendOptions& options) {
  check(static_cast<int>(options.hosts.size()) == size,
        "the backend hierarchical: expected the hosts of {} ranks, found {}", size,
        options.hosts.size());
  auto make = [&options](std::string_view name) {
    return [name, &options](std::shared_ptr<Store> part, int place, std::span<const int> ranks) {
      auto own = options;
      own.world_ranks.assign(ranks.begin(), ranks.end());
      return make_backend(name, std::move(part), place, static_cast<int>(ranks.size()), own);
    };
  };
  return hierarchical::make(std::move(store), rank,
                            {.join_timeout = options.join_timeout, .hosts = options.hosts},
                            make("shm"), make(across));
}

// Among the ranks of one host, of which all are where none is named.
int local_rank(int rank, const std::vector<std::string>& hosts) {
  if (hosts.empty()) return rank;
  return static_cast<int>(std::ranges::count(std::span(hosts).first(rank), hosts.at(rank)));
}

constexpr std::string_view hierarchical_over = "hierarchical:";

}  // namespace

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names{"shm"};
  if (c10d_engine::has_gloo()) names.push_back("gloo");
  if (c10d_engine::has_nccl()) names.push_back("nccl");
  if (mpi::has_mpi()) names.push_back("mpi");
  if (names.size() > 1) names.push_back("hierarchical");
  if (c10d_engine::has_gloo()) names.push_back("hierarchical:gloo");
  if (mpi::has_mpi()) names.push_back("hierarchical:mpi");
  return names;
}

std::shared_ptr<Backend> make_backend(std::string_view name, std::shared_ptr<Store> store, int rank,
                                      int size, const BackendOptions& options) {
  if (options.c10d || name == "gloo" || name == "nccl") {
    return c10d_engine::make(name, std::move(store), rank, size,
                             {.join_timeout = options.join_timeout,
                              .address = options.address,
                              .local_rank = local_rank(rank, options.hosts),
                              .custom = options.c10d});
  }
  if (name == "shm") {
    return shm::make(std::move(store), rank, size,
                     {.timeout = options.timeout,
                      .join_timeout = options.join_timeout,
                      .arena_bytes = options.arena_bytes,
                      .has_tensors = options.arena_tensors,
                      .world_ranks = options.world_ranks});
  }
  if (name == "mpi") return mpi::make(std::move(store), rank, size, options.join_timeout);
  if (name == "hierarchical") {
    auto full = choose_backend(name, options.hosts, false, backend_names());
    return make_backend(full, std::move(store), rank, size, options);
  }
  if (name.starts_with(hierarchical_over)) {
    auto across = name.substr(hierarchical_over.size());
    return make_hierarchical(across, std::move(store), rank, size, options);
  }
  throw BadInput(
      formatted("backend: expected one of {}; found '{}'", listed(backend_names(), ", "), name));
}

}  // namespace lockstep
