// Runs an operation that has global tensors among its arguments.
#pragma once

#include "dispatch/call.h"

namespace lockstep::global {

class GlobalTensor;

// Runs the operation. `one` is the data of one of its tensors. Collective if a tensor must be
// converted.
void run_operation(dispatch::Call& call, const GlobalTensor& one);

}  // namespace lockstep::global
