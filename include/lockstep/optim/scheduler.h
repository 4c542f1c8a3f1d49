// Applies schedules to an optimizer's parameter groups.
//
//   Scheduler scheduler(adamw, cosine({.steps = 1000}));
//   for (...) { ...; adamw.step(); scheduler.step(); }
//
// Works with every optimizer of torch::optim. Not thread-safe; refers to the optimizer.
#pragma once

#include <lockstep/optim/schedule.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep::optim {

class Scheduler {
 public:
  // Sets the groups' rates to those of step 0; the current rates become the base of each group. If
  // given, `momentum` sets SGD's momentum or the first beta of Adam and AdamW; throws
  // InvalidArgument for another optimizer.
  Scheduler(torch::optim::Optimizer& optimizer, Schedule rate, Schedule momentum = {});
  // Takes one schedule per group. Throws InvalidArgument if the numbers differ.
  Scheduler(torch::optim::Optimizer& optimizer, std::vector<Schedule> rates);

  // Call after an update: sets the rates of the next update. A group that was added since the last
  // call takes its current rate as base.
  void step() { set_step(step_ + 1); }
  void set_step(std::int64_t step);

  [[nodiscard]] std::int64_t step_number() const { return step_; }
  // Returns the current rate of each group.
  [[nodiscard]] std::vector<double> rates() const;

  // Everything except the schedules themselves.
  struct State {
    std::int64_t step = 0;
    std::vector<double> bases;  // one per group
  };
  [[nodiscard]] State state() const { return {step_, bases_}; }
  // Throws InvalidArgument if the number of groups differs; nothing is changed then.
  void load_state(const State& state);
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  void take_bases();
  [[nodiscard]] const Schedule& rate_of(std::size_t group) const;

  torch::optim::Optimizer& optimizer_;
  std::vector<Schedule> rates_;  // one for all groups, or one per group
  Schedule momentum_;
  std::vector<double> bases_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
