// Predicts the time of a schedule without running it: when each action starts, how long ranks wait,
// and how many activations they hold.
//
//   plan::Simulation simulation = plan::simulate(schedule, {.communication = 0.1});
//   simulation.bubble();                       // 0.27: fraction of the longest rank's time
//   simulation.ranks[0].peak_activations;      // 4
//
// The model: a rank runs one action at a time, in order. An action starts when the actions it
// depends on have ended, plus `communication` if they ran on another rank. Messages overlap with
// computation and do not delay each other.
#pragma once

#include <lockstep/plan/schedule.h>

#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::plan {

// The times of the actions of a stage, in any unit.
struct StageTimes {
  double forward = 1;
  double backward = 2;
  double input = 1;
  double weight = 1;

  [[nodiscard]] double of(Compute compute) const;
};

struct PipelineTimes {
  std::vector<StageTimes> stages = {{}};  // one for all stages, or one per stage
  double communication = 0;  // from the end of an action until its result is on another rank

  [[nodiscard]] double of(const Action& action) const;
};

struct RankSimulation {
  double begin = 0;  // of the first action
  double end = 0;    // of the last action
  double busy = 0;
  int peak_activations = 0;  // forwards, each of one stage, whose B or W has not run yet

  // Returns the time this rank waits between its first and its last action.
  [[nodiscard]] double idle() const { return end - begin - busy; }
};

struct Simulation {
  std::vector<RankSimulation> ranks;
  std::vector<std::vector<double>> starts;  // start times, indexed like Schedule::ranks

  // Returns the time from the first action to the last one over all ranks.
  [[nodiscard]] double total() const;
  // Returns the rank with the longest time between its first and its last action. That time is the
  // time per step if each rank begins the next step as soon as it has ended the current one.
  [[nodiscard]] const RankSimulation& longest() const;
  // Returns the fraction of its time for which the longest() rank waits: (p - 1) / (m + p - 1) for
  // GPipe and 1F1B.
  [[nodiscard]] double bubble() const;
  [[nodiscard]] int peak_activations() const;
};

// Throws InvalidArgument if the schedule has a problem (find_problem()), a time is negative or not
// finite, or the number of StageTimes is neither one nor the number of stages.
[[nodiscard]] Simulation simulate(const Schedule& schedule, const PipelineTimes& times = {});

// Pictures of a simulated schedule: time runs from left to right, with one row per rank.

// Returns rows of text in blocks of at most `columns` characters. A cell stands for the time of the
// shortest action and is as wide as the longest entry. "F3" is a forward of micro-batch 3 ("5F3":
// of stage 5, printed if a rank has several stages), "-" the rest of an action, "." waiting. Times
// that are not multiples of the shortest one are rounded to cells: the picture then shows the
// order, not the exact times.
[[nodiscard]] std::string text_picture(const Schedule& schedule, const PipelineTimes& times,
                                       const Simulation& simulation, int columns = 110);

// Returns a self-contained SVG document; each action shows its name and times.
[[nodiscard]] std::string svg_picture(const Schedule& schedule, const PipelineTimes& times,
                                      const Simulation& simulation);

}  // namespace lockstep::plan

#pragma GCC visibility pop
