// The engines of c10d: Gloo, NCCL, and those that a user makes; and the backends made of them.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/store/store.h>

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::c10d_engine {

// Whether this build has them.
[[nodiscard]] bool has_gloo();
[[nodiscard]] bool has_nccl();

// A name for each GPU that this process sees, the same in every process: NVIDIA's UUID. Empty in a
// build without NCCL, which cannot tell.
[[nodiscard]] std::vector<std::string> gpu_names();

struct Options {
  Duration join_timeout = std::chrono::minutes(5);
  std::string address = "127.0.0.1";  // gloo: of this machine, as its peers reach it
  std::optional<c10::Device> device;  // nccl: of this rank
  MakeC10dBackend custom = {};        // makes the engine, which has the name
};

// The world of `size` ranks that share `store`: the engine "gloo" or "nccl", or a user's own of any
// name. Blocks until all have come. Errors as those of the three functions above.
[[nodiscard]] std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store,
                                            int rank, int size, const Options& options);

}  // namespace lockstep::c10d_engine
