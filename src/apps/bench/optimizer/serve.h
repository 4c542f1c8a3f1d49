// The process that makes our steps when `lockstep bench optimizer` tells it to.
#pragma once

#include "apps/bench/optimizer/options.h"

namespace lockstep::apps {

// Says `{"ready": true}`, and answers each line on standard input, "update N" or "memory N", by
// `{"seconds": [...]}`: of N steps of AdamW with options.states.front(), or of N passes of the
// memory mix over the same memory. Returns when its input ends.
int serve_optimizer(const OptimizerOptions& options);

}  // namespace lockstep::apps
