// What the trigger, interception by a dispatch key (dispatch/key.h), costs: operations of a step of
// `gpt` that pass it, times what passing it costs, as a share of the step.
#pragma once

#include "apps/bench/step/options.h"

namespace lockstep::apps {

// Calls of one step, and seconds. Views pass through without asking for memory, so they are counted
// and timed apart.
struct TriggerCost {
  int views = 0, uses = 0;
  double seconds_a_view = 0, seconds_a_use = 0;
  double step_seconds = 0;  // median

  [[nodiscard]] double share() const {
    return (views * seconds_a_view + uses * seconds_a_use) / step_seconds;
  }
};

// Lets one process measure and prints what it found, with the goal.
void measure_trigger(const StepOptions& options);

// That process: says `{"ready": true}`, and answers the line "N" by the cost, for a step that is
// the median of N.
int serve_trigger(const ModelSize& size, int threads);

}  // namespace lockstep::apps
