// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::train {

struct ScheduleOptions {
  enum class Kind { constant, step, cosine, wsd, one_cycle };

  Kind kind = Kind::constant;
  double lr = 1e-3;
  double min_lr = 0;           // cosine, wsd: the rate at `steps` and after
  std::int64_t warmup = 0;     // any kind: steps of a straight line from 0; step 0 already moves
  std::int64_t steps = 1;      // cosine, wsd, one-cycle: the run's length
  std::int64_t decay = 0;      // wsd: steps of the fall at the end; 0: a fifth of the run
  std::int64_t step_size = 1;  // step: steps between two decays
  double gamma = 0.1;          // step: factor of one decay
};

// "constant", "step", "cosine", "wsd", "one-cycle". Throws BadInput for another word.
[[nodiscard]] ScheduleOptions::Kind schedule_kind(std::string_view name);

// The rate with which update number `step` (from 0) is made, by the schedules of
// lockstep/optim/schedule.h:
//
//   warm-up    lr * (step + 1) / (warmup + 1) while step < warmup, before any but one-cycle
//   constant   lr
//   step       lr * gamma ^ floor(step / step_size)
//   cosine     from lr down to min_lr in the steps after the warm-up
//   wsd        lr, then a straight line down to min_lr in the last `decay` steps
//   one-cycle  its own way up, which the warm-up's steps replace where there are some, and down
[[nodiscard]] double learning_rate(const ScheduleOptions& options, std::int64_t step);

}  // namespace lockstep::train

#pragma GCC visibility pop
