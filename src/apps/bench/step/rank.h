// Lockstep's rank of `lockstep bench step`: the twin of bench/peers/step.py --serve.
#pragma once

#include "apps/bench/step/options.h"

namespace lockstep::apps {

// Joins its peers by the environment, makes uncounted steps, and then serves standard input until
// it ends (contender.h).
int serve_steps(const StepRankOptions& options);

}  // namespace lockstep::apps
