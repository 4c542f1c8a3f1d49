// `lockstep bench step`: a training step of ours beside PyTorch's, in turn, in one run.
#pragma once

#include "apps/bench/step_options.h"

namespace lockstep::apps {

// Starts both systems, lets them work in turn (the order changes from pair to pair) and prints what
// came out. Throws Error when a rank of either ended.
void compare_steps(const StepOptions& options);

}  // namespace lockstep::apps
