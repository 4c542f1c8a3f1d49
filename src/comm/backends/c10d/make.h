// The c10d backends Gloo, NCCL and user-defined ones, and the backends on top of them.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/store/store.h>

#include "comm/backends/c10d/connection.h"

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::c10d_backend {

// Returns true if this build includes the backend.
[[nodiscard]] bool has_gloo();
[[nodiscard]] bool has_nccl();

// Returns a name for each GPU that this process sees, equal in all processes: NVIDIA's UUID. Empty
// in a build without NCCL.
[[nodiscard]] std::vector<std::string> gpu_names();

// Gloo, if its headers were found at build time.

struct GlooOptions {
  std::string address = "127.0.0.1";  // of this machine, as its peers reach it
  Duration join_timeout = std::chrono::minutes(5);
};

// Connects with size - 1 peers that meet under `name` in the store. Blocks until all ranks have
// joined. Throws BadInput in a build without Gloo, and Timeout if a peer does not join.
[[nodiscard]] std::shared_ptr<C10dConnection> make_gloo(std::shared_ptr<Store> store,
                                                        const std::string& name, int rank, int size,
                                                        GlooOptions options);

// NCCL, if LibTorch has CUDA and the CUDA headers were found at build time.

struct NcclOptions {
  std::optional<c10::Device> device;  // of this rank; std::nullopt: it has no GPU
  Duration join_timeout = std::chrono::minutes(5);
};

// Meets size - 1 peers in the store. Blocks until all ranks have joined and their GPUs are
// connected. Throws BadInput in a build without NCCL, if a rank has no GPU, and if two ranks would
// share a GPU; throws Timeout if a peer does not join.
[[nodiscard]] std::shared_ptr<C10dConnection> make_nccl(const std::shared_ptr<Store>& store,
                                                        int rank, int size, NcclOptions options);

// A user-defined c10d backend.

// Blocks until all ranks have joined `group` in the store. `name` is the name of the backend;
// `streams_of` is the device on whose streams it works, if any (c10d.h). Throws PeerLost if `make`
// throws, and InvalidArgument if `make` returns null.
[[nodiscard]] std::shared_ptr<C10dConnection> make_custom(
    const MakeC10dBackend& make, const std::string& name, std::optional<c10::Device> streams_of,
    std::shared_ptr<Store> store, const std::string& group, int rank, int size, Duration timeout);

struct Options {
  Duration join_timeout = std::chrono::minutes(5);
  std::string address = "127.0.0.1";  // gloo: of this host, for its peers
  std::optional<c10::Device> device;  // of this rank
  MakeC10dBackend custom = {};        // makes the user-defined backend
  bool custom_streams = false;        // that backend works on streams of `device`
  bool float_sums = false;            // InitOptions::float_sums
};

// Makes the world of `size` ranks that share `store`. `name`: "gloo", "nccl", or any name for a
// user-defined backend. Blocks until all ranks have joined. Throws the errors of the three
// functions above.
[[nodiscard]] std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store,
                                            int rank, int size, const Options& options);

}  // namespace lockstep::c10d_backend
