// The self-test of a trigger's key.
#pragma once

#include <c10/core/DispatchKey.h>

#include <string>

namespace lockstep::shard {

// Uses a released tensor directly, through a view, in place and in backward. Empty when everything
// came out right, else what did not.
[[nodiscard]] std::string try_key(c10::DispatchKey key);

}  // namespace lockstep::shard
