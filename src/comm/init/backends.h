// The backends that join processes, by name.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/store/store.h>

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct BackendOptions {
  Duration timeout = std::chrono::minutes(10);
  Duration join_timeout = std::chrono::minutes(5);
  std::int64_t arena_bytes = 0;            // shm
  std::optional<bool> arena_tensors;       // shm: CPU tensors are made in the arena
  std::string address = "127.0.0.1";       // gloo: of this host, for its peers
  MakeC10dBackend c10d = {};               // makes the backend `name`
  bool c10d_streams = false;               // that backend works on streams of `device`
  bool float_sums = false;                 // InitOptions::float_sums
  std::vector<std::string> hosts = {};     // hierarchical: of each rank
  std::vector<int> world_ranks = {};       // shm: of these ranks, if they are not the whole world
  std::optional<c10::Device> device = {};  // of this rank, if it is not the CPU
};

// The backends of this build: "shm", "gloo", "nccl", "mpi", "hierarchical", "hierarchical:gloo",
// ...
[[nodiscard]] std::vector<std::string_view> backend_names();

// Like has_streams() of device.h, for a group whose backend has this name.
[[nodiscard]] bool has_streams(std::string_view name);

// Makes the world of `size` ranks that share `store`. Blocks until all ranks have joined. Throws
// BadInput if this build has no backend `name`, and the errors of the backend.
[[nodiscard]] std::shared_ptr<Backend> make_backend(std::string_view name,
                                                    std::shared_ptr<Store> store, int rank,
                                                    int size, const BackendOptions& options);

}  // namespace lockstep
