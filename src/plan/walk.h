// Walk: executes a schedule step by step, as its ranks would, and records when each action starts,
// or where the ranks deadlock.
#pragma once

#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <cstddef>
#include <vector>

namespace lockstep::plan {

struct Walk {
  std::vector<std::vector<double>> starts;  // of the actions that were reached
  std::vector<double> ends;                 // of each rank's last action that was reached

  [[nodiscard]] bool reached_end(const Schedule& schedule, int rank) const {
    return starts[static_cast<std::size_t>(rank)].size() ==
           schedule.ranks[static_cast<std::size_t>(rank)].size();
  }
};

// Precondition: the schedule contains every dependency of every action.
[[nodiscard]] Walk walk(const Schedule& schedule, const PipelineTimes& times);

}  // namespace lockstep::plan
