#include "comm/init/backends.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/device.h>
#include <lockstep/comm/group.h>

#include "base/check.h"
#include "base/format.h"
#include "comm/engines/c10d/make.h"
#include "comm/engines/hierarchical/runner.h"
#include "comm/engines/mpi/backend.h"
#include "comm/engines/shm/backend.h"
#include "comm/init/choice.h"

#include <span>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view hierarchical_over = "hierarchical:";

std::shared_ptr<Backend> make_shm(std::string_view /*name*/, std::shared_ptr<Store> store, int rank,
                                  int size, const BackendOptions& options) {
  return shm::make(std::move(store), rank, size,
                   {.timeout = options.timeout,
                    .join_timeout = options.join_timeout,
                    .arena_bytes = options.arena_bytes,
                    .has_tensors = options.arena_tensors,
                    .world_ranks = options.world_ranks});
}

std::shared_ptr<Backend> make_mpi(std::string_view /*name*/, std::shared_ptr<Store> store, int rank,
                                  int size, const BackendOptions& options) {
  return mpi::make(std::move(store), rank, size, options.join_timeout);
}

constexpr std::string_view hierarchical_over = "hierarchical:";

}  // namespace

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names;
  for (const NamedBackend& backend : backends) {
    if (backend.has()) names.push_back(backend.name);
  }
  return names;
}

bool has_streams(std::string_view name) { return name == "nccl"; }

bool has_streams(const Group& group) { return has_streams(group.backend()); }

std::shared_ptr<Backend> make_backend(std::string_view name, std::shared_ptr<Store> store, int rank,
                                      int size, const BackendOptions& options) {
  if (options.c10d || name == "gloo" || name == "nccl") {
    return c10d_engine::make(name, std::move(store), rank, size,
                             {.join_timeout = options.join_timeout,
                              .address = options.address,
                              .device = options.device,
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
