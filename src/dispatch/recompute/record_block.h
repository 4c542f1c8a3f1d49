// The interceptor that records the operations of blocks whose activations are computed again.
#pragma once

#include "dispatch/call.h"

namespace lockstep::dispatch {

// A block begins where an operation uses one of its parameters (dispatch/recompute/recomputation.h)
// while gradients are recorded, and ends where one uses a parameter of another block or of none, or
// backward() begins.
void record_block(Call& call);

}  // namespace lockstep::dispatch
