// `lockstep bench optimizer`: a step of our AdamW beside what the memory allows.
#pragma once

#include "apps/bench/optimizer/work.h"

#include <string>
#include <vector>

namespace lockstep::apps {

struct OptimizerOptions {
  OptimizerSizes sizes;
  int threads = 1;
  int rounds = 10;  // turns of each state
  int steps = 3;    // in a turn
  std::vector<std::string> states{"float32", "bfloat16", "blocks"};
  bool json = false;  // one object a row
};

// In this process: each state and the memory pass take turns. Prints the table.
void measure_optimizers(const OptimizerOptions& options);

}  // namespace lockstep::apps
