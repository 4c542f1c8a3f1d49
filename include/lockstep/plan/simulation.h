// What a schedule will take, before anything runs: when each action begins, how long ranks wait,
// how many activations they keep.
//
//   plan::Simulation simulation = plan::simulate(schedule, {.communication = 0.1});
//   simulation.bubble();                       // 0.27: of the time of the longest rank
//   simulation.ranks[0].peak_activations;      // 4
//
// The model: a rank does one action a time, in its order; an action begins when the actions that it
// needs have ended, `communication` later where another rank did them. Messages hide behind
// computing and do not wait for each other.
#pragma once

#include <lockstep/plan/schedule.h>

#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::plan {

// How long the actions of a stage take, in any unit.
struct StageTimes {
  double forward = 1;
  double backward = 2;
  double input = 1;
  double weight = 1;

  [[nodiscard]] double of(Compute compute) const;
};

struct PipelineTimes {
  std::vector<StageTimes> stages = {{}};  // one for all stages, or one for each
  double communication = 0;               // from the end of an action to its result on another rank

  [[nodiscard]] double of(const Action& action) const;
};

struct RankSimulation {
  double begin = 0;  // of its first action
  double end = 0;    // of its last one
  double busy = 0;
  int peak_activations = 0;  // forwards, of one stage each, whose B or W is still to come

  // Waiting between its first and its last action.
  [[nodiscard]] double idle() const { return end - begin - busy; }
};

struct Simulation {
  std::vector<RankSimulation> ranks;
  std::vector<std::vector<double>> starts;  // of each action, as in Schedule::ranks

  // From the first action to the last one of all ranks.
  [[nodiscard]] double total() const;
  // The rank with the longest time between its first and its last action: steps can follow each
  // other in that time where ranks begin the next one when they have ended this one.
  [[nodiscard]] const RankSimulation& longest() const;
  // The share of that time for which that rank waits: (p - 1) / (m + p - 1) of GPipe and 1F1B.
  [[nodiscard]] double bubble() const;
  [[nodiscard]] int peak_activations() const;
};

// InvalidArgument: the schedule has a problem (find_problem()), a time is negative or not finite,
// or there are neither one nor as many StageTimes as stages.
[[nodiscard]] Simulation simulate(const Schedule& schedule, const PipelineTimes& times = {});

}  // namespace lockstep::plan

#pragma GCC visibility pop
