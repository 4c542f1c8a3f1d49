#include "train/optimizers.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/decay.h>
#include <lockstep/optim/sgd.h>

#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

template <class Optimizer, class OptimizerOptions>
std::unique_ptr<torch::optim::Optimizer> make(const std::vector<NamedPart>& parameters,
                                              OptimizerOptions options, double weight_decay,
                                              optim::UpdateOptions update) {
  return std::make_unique<Optimizer>(optim::decay_groups(parameters, options, weight_decay),
                                     options, std::move(update));
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<NamedPart>& parameters,
    std::shared_ptr<optim::StateMemory> memory, std::shared_ptr<optim::SharedUpdate> shared) {
  optim::UpdateOptions update{.memory = std::move(memory), .shared = std::move(shared)};
  if (options.optimizer == "sgd")
    return make<optim::SGD>(parameters,
                            torch::optim::SGDOptions(options.lr).momentum(options.momentum),
                            options.weight_decay, update);
  return make<optim::AdamW>(
      parameters, torch::optim::AdamWOptions(options.lr).betas({options.beta1, options.beta2}),
      options.weight_decay, update);
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    group.options().set_lr(lr);
}

ScheduleOptions schedule_of(const Options& options, std::int64_t steps,
                            std::int64_t steps_per_epoch) {
  return {.kind = schedule_kind(options.schedule),
          .lr = options.lr,
          .min_lr = options.min_lr,
          .warmup = options.warmup,
          .steps = steps,
          .decay = options.decay,
          .step_size = options.step_size > 0 ? options.step_size : steps_per_epoch,
          .gamma = options.gamma};
}

}  // namespace lockstep::train
