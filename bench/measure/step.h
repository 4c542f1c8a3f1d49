// `lockstep-measure step`: measures the time of a training step in each of our modes.
#pragma once

#include "measure/models.h"

#include <lockstep/comm/group.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::bench {

struct StepOptions {
  std::string model = "mlp";                                // a name in models.h
  std::optional<ModelSize> size = {};                       // absent: the model's usual size
  std::vector<std::string> modes = {};                      // empty: all
  std::vector<std::string> optimizers{"default", "fused"};  // torch's AdamW and ours
  int threads = 1;                                          // threads per rank
  int rounds = 10;                                          // turns per mode
  int steps = 3;                                            // steps per turn
  bool json = false;                                        // one JSON object per mode
  std::int64_t ranks = 0;                                   // 0: as the launcher says, otherwise 2
};

// Measures, and prints on rank 0. Collective over `world`. The modes take turns, and each round
// begins with another mode. The time of a step is that of the slowest rank. Throws Error if modes
// that train the same model have different losses.
void measure_steps(const StepOptions& options, const Group& world);

}  // namespace lockstep::bench
