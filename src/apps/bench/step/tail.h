// The tail of a step: from gradients on every rank to parameters that every rank can use. PyTorch's
// is Gloo's all_reduce and then fused AdamW over everything on every rank (bench/peers/tail.py);
// ours is one pass that sums, updates and publishes (ShardOptions::reduce_in_step).
#pragma once

#include "apps/bench/step/options.h"

namespace lockstep::apps {

// Lets both work in turn and prints seconds, the ratio with its goal, and the bytes that our pass
// moved, by its counter, beside 4p + 24 a parameter.
void compare_tails(const StepOptions& options);

// Our rank: as contender.h says, with one tail for a step and bytes_moved() for the bytes.
int serve_tails(const TailSizes& sizes, int threads);

}  // namespace lockstep::apps
