#include "train/schedule.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/schedule.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace lockstep::train {
namespace {

using Kind = ScheduleOptions::Kind;

constexpr std::array kinds{std::pair{std::string_view("constant"), Kind::constant},
                           std::pair{std::string_view("step"), Kind::step},
                           std::pair{std::string_view("cosine"), Kind::cosine},
                           std::pair{std::string_view("wsd"), Kind::wsd},
                           std::pair{std::string_view("one-cycle"), Kind::one_cycle}};

std::int64_t at_least_one(std::int64_t count) { return std::max<std::int64_t>(1, count); }

double wsd(const ScheduleOptions& options, std::int64_t step) {
  std::int64_t decay = options.decay > 0 ? options.decay : options.steps / 5;
  decay = std::min(decay, std::max<std::int64_t>(0, options.steps - options.warmup));
  double least = options.lr > 0 ? options.min_lr / options.lr : 0;
  return optim::wsd({.stable = options.steps - decay, .decay = decay, .least = least})(options.lr,
                                                                                       step);
}

double one_cycle(const ScheduleOptions& options, std::int64_t step) {
  optim::OneCycle cycle{.steps = at_least_one(options.steps)};
  if (options.warmup > 0)
    cycle.rising =
        std::min(1.0, static_cast<double>(options.warmup + 1) / static_cast<double>(cycle.steps));
  return optim::one_cycle(cycle)(options.lr, std::min(step, cycle.steps));
}

}  // namespace

ScheduleOptions::Kind schedule_kind(std::string_view name) {
  for (const auto& [word, kind] : kinds)
    if (word == name) return kind;
  throw BadInput("no schedule '" + std::string(name) +
                 "': expected one of: constant step cosine wsd one-cycle");
}

double learning_rate(const ScheduleOptions& options, std::int64_t step) {
  if (options.kind == Kind::one_cycle) return one_cycle(options, step);
  if (step < options.warmup)
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup + 1);
  switch (options.kind) {
    case Kind::step:
      return optim::step_decay({at_least_one(options.step_size), options.gamma})(options.lr, step);
    case Kind::cosine: {
      std::int64_t span = at_least_one(options.steps - options.warmup);
      return optim::cosine({span, options.min_lr})(options.lr,
                                                   std::min(step - options.warmup, span));
    }
    case Kind::wsd:
      return wsd(options, step);
    default:
      return options.lr;
  }
}

}  // namespace lockstep::train
