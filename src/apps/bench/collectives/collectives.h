// `lockstep bench collectives`: our collectives beside Gloo's and MPI's, in turn, in one run.
#pragma once

#include "apps/bench/collectives/options.h"

namespace lockstep::apps {

// Starts the systems, once for each number of ranks, lets them work in turn and prints what came
// out. Throws BadInput for options that make no sense, before anything is started, and Error when a
// rank of any system ended.
void compare_collectives(const CollectivesOptions& options);

}  // namespace lockstep::apps
