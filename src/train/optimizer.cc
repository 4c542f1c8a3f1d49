#include "train/optimizer.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/decay.h>
#include <lockstep/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

template <class Optimizer, class OptimizerOptions>
std::unique_ptr<torch::optim::Optimizer> make(const std::vector<Part>& parameters,
                                              OptimizerOptions options, double weight_decay,
                                              optim::UpdateOptions update) {
  return std::make_unique<Optimizer>(optim::decay_groups(parameters, options, weight_decay),
                                     options, std::move(update));
}

std::int64_t at_least_one(std::int64_t count) { return std::max<std::int64_t>(1, count); }

optim::Schedule wsd(const Options& options, std::int64_t steps) {
  std::int64_t decay = options.decay > 0 ? options.decay : steps / 5;
  decay = std::min(decay, std::max<std::int64_t>(0, steps - options.warmup));
  const double least = options.lr > 0 ? options.min_lr / options.lr : 0;
  return optim::wsd({.stable = steps - decay, .decay = decay, .least = least});
}

optim::Schedule one_cycle(std::int64_t warmup, std::int64_t steps) {
  optim::OneCycle cycle{.steps = at_least_one(steps)};
  if (warmup > 0)
    cycle.rising =
        std::min(1.0, static_cast<double>(warmup + 1) / static_cast<double>(cycle.steps));
  return [rate = optim::one_cycle(cycle), last = cycle.steps](double base, std::int64_t step) {
    return rate(base, std::min(step, last));
  };
}

optim::Schedule after_warmup(const Options& options, RunLength length) {
  switch (options.schedule) {
    case ScheduleKind::step: {
      optim::Step step = options.step;
      step.step_size = at_least_one(step.step_size > 0 ? step.step_size : length.steps_per_epoch);
      return optim::step_decay(step);
    }
    case ScheduleKind::cosine: {
      const std::int64_t warmup = options.warmup, span = at_least_one(length.steps - warmup);
      return [=, rate = optim::cosine({span, options.min_lr})](double base, std::int64_t step) {
        return rate(base, std::min(step - warmup, span));
      };
    }
    case ScheduleKind::wsd:
      return wsd(options, length.steps);
    default:
      return optim::constant();
  }
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<Part>& parameters,
    std::shared_ptr<optim::StateMemory> memory) {
  optim::UpdateOptions update{.memory = std::move(memory)};
  if (options.optimizer == OptimizerKind::sgd)
    return make<optim::SGD>(parameters,
                            torch::optim::SGDOptions(options.lr).momentum(options.momentum),
                            options.weight_decay, update);
  return make<optim::AdamW>(
      parameters, torch::optim::AdamWOptions(options.lr).betas({options.beta1, options.beta2}),
      options.weight_decay, update);
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of_nothing() {
  return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>(),
                                             torch::optim::SGDOptions(1));
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    group.options().set_lr(lr);
}

optim::Schedule schedule_of(const Options& options, RunLength length) {
  const std::int64_t warmup = options.warmup;
  if (options.schedule == ScheduleKind::one_cycle) return one_cycle(warmup, length.steps);
  const optim::Schedule after = after_warmup(options, length);
  return [=](double base, std::int64_t step) {
    if (step < warmup)
      return base * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
    return after(base, step);
  };
}

}  // namespace lockstep::train
