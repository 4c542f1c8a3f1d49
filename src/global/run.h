// Runs an operation that has global tensors among its arguments.
#pragma once

#include "dispatch/call.h"

namespace lockstep::global {

class GlobalTensor;

// `one` is behind one of the tensors. Collective if a tensor must be converted.
void run_operation(dispatch::Call& call, const GlobalTensor& one);

}  // namespace lockstep::global
