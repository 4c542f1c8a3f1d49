// The self-test of our dispatch key (dispatch/key.h).
#pragma once

#include <string>

namespace lockstep::dispatch {

// Uses a released tensor directly, through a view, in place and in backward, and in each kind of
// operation. Returns what came out wrong; empty if nothing did.
[[nodiscard]] std::string try_key();

}  // namespace lockstep::dispatch
