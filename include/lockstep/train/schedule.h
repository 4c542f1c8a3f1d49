// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::train {

struct ScheduleOptions {
  enum class Kind { constant, step, cosine };

  Kind kind = Kind::constant;
  double lr = 1e-3;
  double min_lr = 0;           // cosine: the rate at `steps` and after
  std::int64_t warmup = 0;     // any kind: steps of a straight line from 0; step 0 already moves
  std::int64_t steps = 1;      // cosine: the run's length
  std::int64_t step_size = 1;  // step: steps between two decays
  double gamma = 0.1;          // step: factor of one decay
};

// "constant", "step", "cosine". Throws BadInput for another word.
[[nodiscard]] ScheduleOptions::Kind schedule_kind(std::string_view name);

// The rate with which update number `step` (from 0) is made:
//   warm-up    lr * (step + 1) / (warmup + 1) while step < warmup; then
//   constant   lr
//   step       lr * gamma ^ floor(step / step_size): torch.optim.lr_scheduler.StepLR
//   cosine     min_lr + (lr - min_lr) * (1 + cos(pi * t)) / 2,
//              t = (step - warmup) / (steps - warmup), at most 1
//              (Loshchilov and Hutter, arXiv:1608.03983)
[[nodiscard]] double learning_rate(const ScheduleOptions& options, std::int64_t step);

}  // namespace lockstep::train
