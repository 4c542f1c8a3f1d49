// Walk: executes a schedule step by step, as its ranks would, and records when each action starts,
// or where the ranks deadlock.
#pragma once

#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::plan {

// The dependencies of an action are results: the outputs of a forward, as an F, or the gradient of
// a stage's inputs, which a B or an I computes, as an I. Nothing depends on a W.
[[nodiscard]] inline Action result_of(Action action) {
  if (action.compute == Compute::backward) action.compute = Compute::input;
  return action;
}

// Returns a number that is unique among the F, I and W of a schedule; a B is an I and a W.
[[nodiscard]] inline std::uint64_t key_of(const Action& part) {
  const std::uint64_t cell =
      static_cast<std::uint64_t>(part.stage) << 32 | static_cast<std::uint64_t>(part.micro_batch);
  if (part.compute == Compute::forward) return cell * 4;
  return cell * 4 + (part.compute == Compute::weight ? 2 : 1);
}

// The results that an action depends on; at most two.
class Needs {
 public:
  Needs(const Action& action, int stages) {
    switch (action.compute) {
      case Compute::forward:
        if (action.stage > 0) add({Compute::forward, action.stage - 1, action.micro_batch});
        break;
      case Compute::backward:
      case Compute::input:
        add({Compute::forward, action.stage, action.micro_batch});
        if (action.stage + 1 < stages) add({Compute::input, action.stage + 1, action.micro_batch});
        break;
      case Compute::weight:
        add({Compute::input, action.stage, action.micro_batch});
        break;
    }
  }
  [[nodiscard]] const Action* begin() const { return needs_.data(); }
  [[nodiscard]] const Action* end() const { return needs_.data() + count_; }

 private:
  void add(Action result) { needs_[count_++] = result; }

  std::array<Action, 2> needs_;
  std::size_t count_ = 0;
};

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

// posting_order(): the order in which all ranks of a pipeline post their operations.
//
// GPUs need a common order. An operation of several ranks, once launched, occupies a GPU until its
// peers have launched it, too; if two ranks launch two operations in different orders and their
// GPUs have no room for both, they wait for each other forever. Therefore every rank computes this
// order from the schedule and posts its operations in this order. Operations inside an action (such
// as an all_gather of a sharded stage) are posted when the action runs, and the message with the
// result directly after it. The receiving rank posts its receive there, too, between its own
// actions.
//
// Why no rank waits forever: before an operation, a rank waits, on the host or on a stream, only
// for operations that are earlier in this order. Take the earliest operation that is not complete.
// All its ranks post it, because every operation that they wait for before it is complete. GPUs
// launch operations in post order, so only completed operations and computations precede it on each
// GPU. So it completes.

// Returns all actions of all ranks, ordered by their end in the simulation with the default times.
// So each action comes after the actions that it depends on, and the actions of one rank keep their
// order. If the simulation says that a result arrives during an action, the rank posts the receive
// before that action. Precondition: the schedule is executable, or is the result of forward_only()
// for an executable schedule.
[[nodiscard]] std::vector<Action> posting_order(const Schedule& schedule);

}  // namespace lockstep::plan
