// The interceptor for parts (lockstep/dispatch/part.h): which operations are refused, and whose
// results are parts again.
#pragma once

#include "dispatch/call.h"

namespace lockstep::dispatch {

// InvalidArgument for a part among the arguments, which has several ranks, and an operation that
// mixes elements. Results that are new become parts, as the arguments were.
void check_parts(Call& call);

}  // namespace lockstep::dispatch
