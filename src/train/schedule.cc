#include <lockstep/train/schedule.h>

#include <lockstep/base/error.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace lockstep::train {
namespace {

double cosine(const ScheduleOptions& options, std::int64_t step) {
  double span = static_cast<double>(std::max<std::int64_t>(1, options.steps - options.warmup));
  double progress = std::min(1.0, static_cast<double>(step - options.warmup) / span);
  return options.min_lr +
         (options.lr - options.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace

ScheduleOptions::Kind schedule_kind(std::string_view name) {
  if (name == "constant") return ScheduleOptions::Kind::constant;
  if (name == "step") return ScheduleOptions::Kind::step;
  if (name == "cosine") return ScheduleOptions::Kind::cosine;
  throw BadInput("no schedule '" + std::string(name) + "': expected one of: constant step cosine");
}

double learning_rate(const ScheduleOptions& options, std::int64_t step) {
  if (step < options.warmup)
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup + 1);
  switch (options.kind) {
    case ScheduleOptions::Kind::constant:
      return options.lr;
    case ScheduleOptions::Kind::step:
      return options.lr *
             std::pow(options.gamma,
                      static_cast<double>(step / std::max<std::int64_t>(1, options.step_size)));
    case ScheduleOptions::Kind::cosine:
      return cosine(options, step);
  }
  return options.lr;
}

}  // namespace lockstep::train
