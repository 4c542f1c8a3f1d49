// The optimizer that the options ask for.
#pragma once

#include <lockstep/parallel/handle.h>
#include <lockstep/train/options.h>
#include "train/schedule.h"

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace lockstep::train {

// Weight decay acts on parameters of two dims and more; biases and normalisations are left alone
// (nanoGPT's rule).
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<NamedPart>& parameters,
    std::shared_ptr<optim::StateMemory> memory = nullptr,
    std::shared_ptr<optim::SharedUpdate> shared = nullptr);

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

// The schedule of a run of `steps` steps, of which an epoch takes `steps_per_epoch`.
[[nodiscard]] ScheduleOptions schedule_of(const Options& options, std::int64_t steps,
                                          std::int64_t steps_per_epoch);

}  // namespace lockstep::train
