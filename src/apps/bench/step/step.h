// `lockstep bench step`: training steps of ours beside PyTorch's, in turn, in one run.
#pragma once

#include "apps/bench/step/options.h"

namespace lockstep::apps {

// Three parts: for each kind of AdamW, starts the contenders, lets them work in turn, each round
// beginning with another, and prints what came out, with the ratios that have a goal; then the tail
// of a step (tail.h) and the trigger (trigger.h). Throws BadInput for options
// that make no sense, before anything is started, and Error when a rank ended.
void compare_steps(const StepOptions& options);

}  // namespace lockstep::apps
