// The self-test of a dispatch key.
#pragma once

#include <c10/core/DispatchKey.h>

#include <string>

namespace lockstep::dispatch {

// Uses a released tensor directly, through a view, in place and in backward. Empty when everything
// came out right, else what did not.
[[nodiscard]] std::string try_key(c10::DispatchKey key);

}  // namespace lockstep::dispatch
