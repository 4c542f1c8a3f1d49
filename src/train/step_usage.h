// What a step uses beside its time.
#pragma once

#include <lockstep/comm/group.h>

#include <cstdint>

namespace lockstep::train {

struct StepUsage {
  std::int64_t resident_bytes = 0;  // of the process
  std::int64_t model_bytes = 0;     // of parameters, gradients and optimizer state
  double exposed_seconds = 0;       // in waits for communication
  // Of those of the handle (StepTiming), and of the update; 0 where it does not measure them.
  double forward_seconds = 0, backward_seconds = 0, update_seconds = 0;
};

// Collective: each number of the rank that has the most of it.
[[nodiscard]] StepUsage most_of_all(Group& group, const StepUsage& own);

}  // namespace lockstep::train
