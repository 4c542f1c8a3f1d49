#include <lockstep/plan/simulation.h>

#include "base/check.h"
#include "plan/walk.h"

#include <algorithm>
#include <cmath>

namespace lockstep::plan {
namespace {

void check_time(double time, const char* of) {
  check(std::isfinite(time) && time >= 0, "simulate: time of {}: expected at least 0, found {}", of,
        time);
}

void check_times(const Schedule& schedule, const PipelineTimes& times) {
  const std::size_t count = times.stages.size();
  check(count == 1 || count == static_cast<std::size_t>(schedule.stages),
        "simulate: expected times of one stage or of all {}, found {}", schedule.stages, count);
  for (const StageTimes& stage : times.stages) {
    check_time(stage.forward, "F");
    check_time(stage.backward, "B");
    check_time(stage.input, "I");
    check_time(stage.weight, "W");
  }
  check_time(times.communication, "communication");
}

}  // namespace

double StageTimes::of(Compute compute) const {
  switch (compute) {
    case Compute::forward:
      return forward;
    case Compute::backward:
      return backward;
    case Compute::input:
      return input;
    case Compute::weight:
      break;
  }
  return weight;
}

double PipelineTimes::of(const Action& action) const {
  const std::size_t stage = stages.size() == 1 ? 0 : static_cast<std::size_t>(action.stage);
  return stages[stage].of(action.compute);
}

double Simulation::total() const {
  double begin = ranks.front().begin, end = 0;
  for (const RankSimulation& rank : ranks) {
    begin = std::min(begin, rank.begin);
    end = std::max(end, rank.end);
  }
  return end - begin;
}

const RankSimulation& Simulation::longest() const {
  return *std::ranges::max_element(ranks, {},
                                   [](const auto& rank) { return rank.end - rank.begin; });
}

double Simulation::bubble() const {
  const RankSimulation& rank = longest();
  const double time = rank.end - rank.begin;
  return time > 0 ? rank.idle() / time : 0;
}

int Simulation::peak_activations() const {
  return std::ranges::max_element(ranks, {}, &RankSimulation::peak_activations)->peak_activations;
}

Simulation simulate(const Schedule& schedule, const PipelineTimes& times) {
  check_schedule(schedule);
  check_times(schedule, times);
  Walk reached = walk(schedule, times);
  Simulation simulation{{}, std::move(reached.starts)};
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    RankSimulation rank{.begin = simulation.starts[r].front(), .end = reached.ends[r]};
    int activations = 0;
    for (const Action& action : schedule.ranks[r]) {
      rank.busy += times.of(action);
      if (action.compute == Compute::forward) ++activations;
      if (action.compute == Compute::backward || action.compute == Compute::weight) --activations;
      rank.peak_activations = std::max(rank.peak_activations, activations);
    }
    simulation.ranks.push_back(rank);
  }
  return simulation;
}

}  // namespace lockstep::plan
