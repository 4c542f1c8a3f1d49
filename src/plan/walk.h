// Walk: goes through a schedule as its ranks would, each through its own actions, and finds out
// when each begins or where they wait for ever.
#pragma once

#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <cstddef>
#include <vector>

namespace lockstep::plan {

struct Walk {
  std::vector<std::vector<double>> starts;  // of the actions that were reached
  std::vector<double> ends;                 // of the last one of each rank that was reached

  [[nodiscard]] bool reached_end(const Schedule& schedule, int rank) const {
    return starts[static_cast<std::size_t>(rank)].size() ==
           schedule.ranks[static_cast<std::size_t>(rank)].size();
  }
};

// Every dependency of every action is somewhere in the schedule.
[[nodiscard]] Walk walk(const Schedule& schedule, const PipelineTimes& times);

}  // namespace lockstep::plan
