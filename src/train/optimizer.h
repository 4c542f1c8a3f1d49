// The optimizer and the learning rates that the options select.
#pragma once

#include <lockstep/optim/schedule.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/train/options.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep::train {

// Makes the optimizer. Weight decay applies to parameters of two dims or more, but not to biases
// and normalisations (nanoGPT's rule).
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<Part>& parameters,
    std::shared_ptr<optim::StateMemory> memory = nullptr);

// Makes an optimizer without parameters, for ranks that take part in saving and loading but update
// nothing.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> optimizer_of_nothing();

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

// The length of a run.
struct RunLength {
  std::int64_t steps = 1;
  std::int64_t steps_per_epoch = 1;
};

// Returns the schedule of the options, made by the functions of lockstep/optim/schedule.h. Call it
// with Options::lr and the number of the update, from 0.
//
//   warm-up    lr * (step + 1) / (warmup + 1) while step < warmup, except for one-cycle
//   constant   lr
//   step       lr * gamma ^ floor(step / step_size)
//   cosine     from lr down to min_lr in the steps after the warm-up
//   wsd        lr, then linearly down to min_lr in the last `decay` steps
//   one-cycle  its own rise, which takes `warmup` steps if that is positive, and its fall
[[nodiscard]] optim::Schedule schedule_of(const Options& options, RunLength length);

}  // namespace lockstep::train
