// The tail of a step: from gradients on every rank to parameters that every rank can use. PyTorch's
// is Gloo's all_reduce and then fused AdamW over everything on every rank (bench/peers/tail.py);
// ours is one pass that sums, updates and publishes (ShardOptions::reduce_in_step).
#pragma once

#include "apps/bench/step/options.h"

#include <cstdint>

namespace lockstep::apps {

// Parameters of the two systems: so many tensors of so many elements.
struct TailSizes {
  int tensors = 16;
  int elements = 1 << 20;

  [[nodiscard]] std::int64_t parameters() const { return std::int64_t{tensors} * elements; }
};

// Lets both work in turn and prints seconds, the ratio with its goal, and the bytes that our pass
// moved, by its counter, beside 4p + 24 a parameter.
void compare_tails(const StepOptions& options, const TailSizes& sizes);

// Our rank: as contender.h says, with one tail for a step and bytes_moved() for the bytes.
int serve_tails(const TailSizes& sizes, int threads);

}  // namespace lockstep::apps
