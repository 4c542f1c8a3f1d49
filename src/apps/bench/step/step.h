// `lockstep bench step`: how long a training step takes in each of our modes.
#pragma once

#include "apps/bench/models.h"

#include <lockstep/comm/group.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

struct StepOptions {
  std::string model = "mlp";                                // models.h
  std::optional<ModelSize> size = {};                       // absent: the model's usual one
  std::vector<std::string> modes = {};                      // empty: all
  std::vector<std::string> optimizers{"default", "fused"};  // torch's AdamW and ours
  int threads = 1;                                          // of a rank
  int rounds = 10;                                          // turns of each mode
  int steps = 3;                                            // in a turn
  bool json = false;                                        // one object a mode
  std::int64_t ranks = 0;                                   // 0: as the launcher says, else 2
};

// Collective over `world`, of which rank 0 prints. The modes take turns, each round beginning with
// another one; a step counts as long as the rank that took longest for it. Throws Error when modes
// that train the same model have different losses.
void measure_steps(const StepOptions& options, const Group& world);

}  // namespace lockstep::apps
