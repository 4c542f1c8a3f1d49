// `lockstep-measure optimizer`: compares a step of our AdamW with the memory bound.
#pragma once

#include "measure/optimizer_work.h"

#include <string>
#include <vector>

namespace lockstep::bench {

struct OptimizerOptions {
  OptimizerSizes sizes;
  int threads = 1;
  int rounds = 10;  // turns per state
  int steps = 3;    // steps per turn
  std::vector<std::string> states{"float32", "bfloat16", "blocks"};
  bool json = false;  // one JSON object per row
};

// Measures in this process; each state and the memory pass take turns. Prints the table.
void measure_optimizers(const OptimizerOptions& options);

}  // namespace lockstep::bench
