// Gloo, where its headers were found when this was built.
#pragma once

#include "comm/engines/c10d/engine.h"

namespace lockstep::c10d_engine {

struct GlooOptions {
  std::string address = "127.0.0.1";  // of this machine, as its peers reach it
  Duration join_timeout = std::chrono::minutes(5);
};

// Connects with size - 1 peers that meet under `name` in the store. Blocks until all have come.
// BadInput in a build without Gloo; Timeout when they do not come.
[[nodiscard]] std::shared_ptr<Engine> make_gloo(std::shared_ptr<Store> store,
                                                const std::string& name, int rank, int size,
                                                GlooOptions options);

}  // namespace lockstep::c10d_engine
