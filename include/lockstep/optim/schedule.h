// Learning rates as pure functions of the step. A Schedule takes the initial learning rate of a
// parameter group and the number of updates made so far, and returns the rate of the next update; a
// Scheduler applies it. Except for wsd(), the rates equal those of the named class of
// torch.optim.lr_scheduler with the same parameters.
//
//   auto rate = one_after_another({linear({.start = 0.1, .steps = 100}), cosine({.steps = 900})},
//                                 {100});
//   Scheduler scheduler(adamw, rate);
//
// Each maker throws InvalidArgument if its parameters do not define a schedule.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep::optim {

using Schedule = std::function<double(double base, std::int64_t step)>;

//   base * factor while step < steps, then base; with steps = 0, base * factor forever.  ConstantLR
struct Constant {
  double factor = 1;
  std::int64_t steps = 0;
};
[[nodiscard]] Schedule constant(Constant options = {});

// base times a factor that changes linearly from `start` to `end`. LinearLR
struct Linear {
  double start = 1.0 / 3;
  double end = 1;
  std::int64_t steps = 5;
};
[[nodiscard]] Schedule linear(Linear options);

// base * gamma ^ floor(step / step_size).                                    StepLR
struct Step {
  std::int64_t step_size = 1;
  double gamma = 0.1;
};
[[nodiscard]] Schedule step_decay(Step options);

// base * gamma ^ (milestones that are at most step).                         MultiStepLR
struct MultiStep {
  std::vector<std::int64_t> milestones;
  double gamma = 0.1;
};
[[nodiscard]] Schedule multi_step(MultiStep options);

// base * gamma ^ step.                                                       ExponentialLR
[[nodiscard]] Schedule exponential(double gamma);

// base * (1 - min(step, steps) / steps) ^ power.                             PolynomialLR
struct Polynomial {
  std::int64_t steps = 5;
  double power = 1;
};
[[nodiscard]] Schedule polynomial(Polynomial options);

// least + (base - least) * (1 + cos(pi * step / steps)) / 2: decreases for `steps` steps, then
// increases again.                                                           CosineAnnealingLR
struct Cosine {
  std::int64_t steps = 1;
  double least = 0;
};
[[nodiscard]] Schedule cosine(Cosine options);

// Cosine annealing that restarts from the top after `first` steps, then after `factor` times as
// many, and so on (Loshchilov and Hutter, SGDR, ICLR 2017).  CosineAnnealingWarmRestarts
struct Restarts {
  std::int64_t first = 1;
  std::int64_t factor = 1;
  double least = 0;
};
[[nodiscard]] Schedule cosine_with_restarts(Restarts options);

// In the first `rising` fraction of the steps, rises from base / divisor to base; then falls to
// base / divisor / final_divisor (Smith and Topin, Super-Convergence, 2018). OneCycleLR
struct OneCycle {
  std::int64_t steps = 1;
  double rising = 0.3;
  double divisor = 25;
  double final_divisor = 1e4;
  bool straight = false;      // linear phases instead of cosine phases
  bool three_phases = false;  // falls to the start rate as fast as it rose, then to the end
};
[[nodiscard]] Schedule one_cycle(OneCycle options);
// The momentum for one_cycle(): falls from `most` to `least` while the rate rises, and rises again
// while the rate falls.
[[nodiscard]] Schedule one_cycle_momentum(OneCycle options, double least = 0.85,
                                          double most = 0.95);

// Warm-up, stable, decay (Hu et al., MiniCPM, arXiv:2404.06395), with T = warmup + stable:
//
//   step < warmup         base * (step + 1) / warmup
//   step < T              base
//   step < T + decay      base * (least + (1 - least) * f((step - T) / decay))
//   after that            base * least
//
// f(x) is 1 - x (linear), (1 + cos(pi * x)) / 2, or 1 - sqrt(x) (Haegele et al., Scaling Laws and
// Compute-Optimal Training Beyond Fixed Training Durations, NeurIPS 2024).
struct Wsd {
  enum class Shape { linear, cosine, root };

  std::int64_t warmup = 0;
  std::int64_t stable = 0;
  std::int64_t decay = 0;
  double least = 0;  // fraction of base
  Shape shape = Shape::linear;
};
[[nodiscard]] Schedule wsd(Wsd options);

// Schedule number i + 1 takes over at milestones[i], counting its own steps from 0.  SequentialLR
[[nodiscard]] Schedule one_after_another(std::vector<Schedule> schedules,
                                         std::vector<std::int64_t> milestones);

// Applies schedules to an optimizer's parameter groups.
//
//   Scheduler scheduler(adamw, cosine({.steps = 1000}));
//   for (...) { ...; adamw.step(); scheduler.step(); }
//
// Works with every optimizer of torch::optim. Not thread-safe; refers to the optimizer.
class Scheduler {
 public:
  // Sets the groups' rates to those of step 0; the current rates become the base of each group. If
  // given, `momentum` sets SGD's momentum or the first beta of Adam and AdamW; throws
  // InvalidArgument for another optimizer, which is not changed then.
  Scheduler(torch::optim::Optimizer& optimizer, Schedule rate, Schedule momentum = {});
  // Takes one schedule per group. Throws InvalidArgument if the numbers differ.
  Scheduler(torch::optim::Optimizer& optimizer, std::vector<Schedule> rates);

  // Call after an update: sets the rates of the next update. A group that was added since the last
  // call takes its current rate as base. Throws InvalidArgument if a rate is not the one that this
  // Scheduler set last: the program, or another Scheduler of the optimizer, has changed it, and the
  // change would be lost. One function of the step combines several schedules.
  void step();
  // Throws InvalidArgument for a negative step, and an error of a schedule, such as one_cycle()'s
  // after its last step; nothing is changed then.
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
  // Throws InvalidArgument if the number of groups differs, and in the cases of set_step().
  void check_state(const State& state) const;
  // Throws as check_state() does; nothing is changed then.
  void load_state(const State& state);
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  // The values of one group at one step.
  struct Values {
    double rate = 0;
    double momentum = 0;  // unused without a schedule of the momentum
  };

  // Returns the bases, with the current rates of groups that were added since the last call.
  [[nodiscard]] std::vector<double> bases_of_all() const;
  // Returns the values of each group. Throws as check_state() does.
  [[nodiscard]] std::vector<Values> values_at(const State& state) const;
  [[nodiscard]] const Schedule& rate_of(std::size_t group) const;

  torch::optim::Optimizer& optimizer_;
  std::vector<Schedule> rates_;  // one for all groups, or one per group
  Schedule momentum_;
  std::vector<double> bases_;
  std::vector<double> last_rates_;  // of each group, as set by the last load_state()
  std::int64_t step_ = 0;
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
