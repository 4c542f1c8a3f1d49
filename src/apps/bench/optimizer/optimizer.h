// `lockstep bench optimizer`: AdamW beside PyTorch's default and fused ones, and beside what the
// memory allows, in turn.
#pragma once

#include "apps/bench/optimizer/options.h"

namespace lockstep::apps {

// Prints the table, or one JSON object a contender. Throws BadInput without a Python, Error when a
// process ended.
void compare_optimizers(const OptimizerOptions& options);

}  // namespace lockstep::apps
