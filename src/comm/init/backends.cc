#include "comm/init/backends.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/device.h>

#include "base/check.h"
#include "base/format.h"
#include "comm/api/group_state.h"
#include "comm/backends/c10d/make.h"
#include "comm/backends/hierarchical/runner.h"
#include "comm/backends/mpi/backend.h"
#include "comm/backends/shm/backend.h"
#include "comm/init/choice.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view hierarchical_over = "hierarchical:";

std::shared_ptr<Backend> make_hierarchical(std::string_view name, std::shared_ptr<Store> store,
                                           int rank, int size, const BackendOptions& options) {
  if (!name.starts_with(hierarchical_over)) {
    auto full = choose_backend(name, options.hosts, false, backend_names());
    return make_hierarchical(full, std::move(store), rank, size, options);
  }
  check(static_cast<int>(options.hosts.size()) == size,
        "the backend hierarchical: expected the hosts of {} ranks, found {}", size,
        options.hosts.size());
  auto make = [&options](std::string_view part_name) {
    return [part_name, &options](std::shared_ptr<Store> part, int place,
                                 std::span<const int> ranks) {
      auto own = options;
      own.world_ranks.assign(ranks.begin(), ranks.end());
      return make_backend(part_name, std::move(part), place, static_cast<int>(ranks.size()), own);
    };
  };
  return hierarchical::make(std::move(store), rank, options, make("shm"),
                            make(name.substr(hierarchical_over.size())));
}

struct NamedBackend {
  std::string_view name;
  decltype(&make_hierarchical) make;
  bool (*has)();  // true if this build has it
};

// The one list of backends.
constexpr std::array<NamedBackend, 7> backends{{
    {"shm", shm::make, [] { return true; }},
    {"gloo", c10d_backend::make, c10d_backend::has_gloo},
    {"nccl", c10d_backend::make, c10d_backend::has_nccl},
    {"mpi", mpi::make, mpi::has_mpi},
    {"hierarchical", make_hierarchical,
     [] { return c10d_backend::has_gloo() || c10d_backend::has_nccl() || mpi::has_mpi(); }},
    {"hierarchical:gloo", make_hierarchical, c10d_backend::has_gloo},
    {"hierarchical:mpi", make_hierarchical, mpi::has_mpi},
}};

}  // namespace

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names;
  for (const NamedBackend& backend : backends) {
    if (backend.has()) names.push_back(backend.name);
  }
  return names;
}

bool has_streams(std::string_view name) { return name == "nccl"; }

bool has_streams(const Group& group) {
  return group.state_->has_backend() && group.state_->backend()->has_streams();
}

Group host_memory_group(const Group& group) {
  auto name = formatted("{}/host#{}", group.name(), group.state_->next_part());
  Group(group).barrier({.tag = "host_memory_group"}).wait();
  return Group(group.state_->on_host(std::move(name)));
}

std::shared_ptr<Backend> make_backend(std::string_view name, std::shared_ptr<Store> store, int rank,
                                      int size, const BackendOptions& options) {
  if (options.c10d) return c10d_backend::make(name, std::move(store), rank, size, options);
  const auto* found = std::ranges::find(backends, name, &NamedBackend::name);
  if (found != backends.end()) return found->make(name, std::move(store), rank, size, options);
  throw BadInput(
      formatted("backend: expected one of {}; found '{}'", listed(backend_names(), ", "), name));
}

// All ranks go through the directions in one order, so no two wait for each other.
void connect(Group& group, const Directions& directions, std::optional<Duration> timeout) {
  if (!has_streams(group)) return;
  const CallOptions call{.tag = "connect", .timeout = timeout};
  const at::Tensor message = at::zeros({1});
  for (const auto& [source, destination] : directions) {
    if (source == destination) continue;
    if (group.rank() == source) group.send(message, destination, call).wait();
    if (group.rank() == destination) group.recv(message, source, call).wait();
  }
}

}  // namespace lockstep
