// The engines of c10d: Gloo, NCCL, and those that a user makes; and the backends made of them.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/store/store.h>

#include "comm/engines/c10d/engine.h"

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::c10d_engine {

// Returns true if this build includes the backend.
[[nodiscard]] bool has_gloo();
[[nodiscard]] bool has_nccl();

// A name for each GPU that this process sees, the same in every process: NVIDIA's UUID. Empty in a
// build without NCCL, which cannot tell.
[[nodiscard]] std::vector<std::string> gpu_names();

// Gloo, where its headers were found when this was built.

struct GlooOptions {
  std::string address = "127.0.0.1";  // of this machine, as its peers reach it
  Duration join_timeout = std::chrono::minutes(5);
};

// Connects with size - 1 peers that meet under `name` in the store. Blocks until all have come.
// BadInput in a build without Gloo; Timeout when they do not come.
[[nodiscard]] std::shared_ptr<Engine> make_gloo(std::shared_ptr<Store> store,
                                                const std::string& name, int rank, int size,
                                                GlooOptions options);

// NCCL, where LibTorch comes with CUDA and the CUDA headers were found when this was built.

struct NcclOptions {
  std::optional<c10::Device> device;  // of this rank; std::nullopt: it has no GPU
  Duration join_timeout = std::chrono::minutes(5);
};

// Meets size - 1 peers in the store. Blocks until all have come and their GPUs are connected.
// Throws BadInput in a build without NCCL, if a rank has no GPU, and if two ranks would share one;
// Timeout if the peers do not come.
[[nodiscard]] std::shared_ptr<Engine> make_nccl(const std::shared_ptr<Store>& store, int rank,
                                                int size, NcclOptions options);

// An engine of c10d that the user made.

// Blocks until all have come under `group` in the store. `name` is the engine's; `streams_of` the
// device on whose streams it works, if it does (c10d.h). PeerLost when it cannot be made;
// InvalidArgument when `make` returns nothing.
[[nodiscard]] std::shared_ptr<Engine> make_custom(
    const MakeC10dBackend& make, const std::string& name, std::optional<c10::Device> streams_of,
    std::shared_ptr<Store> store, const std::string& group, int rank, int size, Duration timeout);

struct Options {
  Duration join_timeout = std::chrono::minutes(5);
  std::string address = "127.0.0.1";  // gloo: of this machine, as its peers reach it
  std::optional<c10::Device> device;  // of this rank
  MakeC10dBackend custom = {};        // makes the engine, which has the name
  bool custom_streams = false;        // and works on streams of the device
  bool float_sums = false;            // InitOptions::float_sums
};

// The world of `size` ranks that share `store`: the engine "gloo" or "nccl", or a user's own of any
// name. Blocks until all have come. Errors as those of the three functions above.
[[nodiscard]] std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store,
                                            int rank, int size, const Options& options);

}  // namespace lockstep::c10d_engine
