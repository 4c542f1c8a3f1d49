// The engines of c10d as backends: Gloo, NCCL, and those that a user makes.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/store/store.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::c10d_engine {

// Whether this build has them.
[[nodiscard]] bool has_gloo();
[[nodiscard]] bool has_nccl();

struct Options {
  Duration join_timeout = std::chrono::minutes(5);
  std::string address = "127.0.0.1";  // gloo: of this machine, as its peers reach it
  int local_rank = 0;                 // nccl: as in nccl.h
  MakeC10dBackend custom = {};        // makes the engine, which has the name
};

// The world of `size` ranks that share `store`: the engine "gloo" or "nccl", or a user's own of any
// name. Blocks until all have come. Errors as those of gloo.h, nccl.h and custom.h.
[[nodiscard]] std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store,
                                            int rank, int size, const Options& options);

}  // namespace lockstep::c10d_engine
