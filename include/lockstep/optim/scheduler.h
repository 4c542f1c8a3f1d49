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
  // The groups' rates become those of step 0; what they are now is each group's base. `momentum`,
  // when given, sets SGD's momentum or Adam's and AdamW's first beta; InvalidArgument for another
  // optimizer.
  Scheduler(torch::optim::Optimizer& optimizer, Schedule rate, Schedule momentum = {});
  // One schedule for each group. InvalidArgument when there are more or fewer.
  Scheduler(torch::optim::Optimizer& optimizer, std::vector<Schedule> rates);

  // After an update: the rates of the next one. Groups that were added since the last call begin
  // with the rate they have as their base.
  void step() { set_step(step_ + 1); }
  void set_step(std::int64_t step);

  [[nodiscard]] std::int64_t step_number() const { return step_; }
  // One a group.
  [[nodiscard]] std::vector<double> rates() const;

  // All that is not in the schedules themselves.
  struct State {
    std::int64_t step = 0;
    std::vector<double> bases;  // one a group
  };
  [[nodiscard]] State state() const { return {step_, bases_}; }
  // InvalidArgument when the number of groups differs; nothing is changed then.
  void load_state(const State& state);
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  void take_bases();
  [[nodiscard]] const Schedule& rate_of(std::size_t group) const;

  torch::optim::Optimizer& optimizer_;
  std::vector<Schedule> rates_;  // one for all groups, or one each
  Schedule momentum_;
  std::vector<double> bases_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
