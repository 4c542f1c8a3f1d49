// An engine of c10d that the user made.
#pragma once

#include <lockstep/comm/c10d.h>

#include "comm/engines/c10d/engine.h"

#include <memory>
#include <string>

namespace lockstep::c10d_engine {

// Blocks until all have come under `group` in the store. `name` is the engine's. PeerLost when it
// cannot be made; InvalidArgument when `make` returns nothing.
[[nodiscard]] std::shared_ptr<Engine> make_custom(const MakeC10dBackend& make,
                                                  const std::string& name,
                                                  std::shared_ptr<Store> store,
                                                  const std::string& group, int rank, int size,
                                                  Duration timeout);

}  // namespace lockstep::c10d_engine
