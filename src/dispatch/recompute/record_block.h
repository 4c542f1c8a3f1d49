// The interceptor that records the operations of checkpointed blocks.
#pragma once

#include "dispatch/call.h"

namespace lockstep::dispatch {

// While gradients are recorded, a block begins at an operation that uses one of its parameters
// (dispatch/recompute/recomputation.h). It ends at an operation that uses a parameter of another
// block or of none, or when backward() begins.
void record_block(Call& call);

}  // namespace lockstep::dispatch
