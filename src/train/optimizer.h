// The optimizer and the learning rates that the options ask for.
#pragma once

#include <lockstep/optim/schedule.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/train/options.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep::train {

// Weight decay acts on parameters of two dims and more; biases and normalisations are left alone
// (nanoGPT's rule).
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<NamedPart>& parameters,
    std::shared_ptr<optim::StateMemory> memory = nullptr);

// For ranks that save and load beside others, and update nothing.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> optimizer_of_nothing();

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

// How long a run is.
struct RunLength {
  std::int64_t steps = 1;
  std::int64_t steps_per_epoch = 1;
};

// The rate of update number `step` (from 0), by the makers of lockstep/optim/schedule.h; called
// with Options::lr.
//
//   warm-up    lr * (step + 1) / (warmup + 1) while step < warmup, for all but one-cycle
//   constant   lr
//   step       lr * gamma ^ floor(step / step_size)
//   cosine     from lr down to min_lr in the steps after the warm-up
//   wsd        lr, then a straight line down to min_lr in the last `decay` steps
//   one-cycle  its own way up, which the steps of the warm-up replace if there are any, and down
[[nodiscard]] optim::Schedule schedule_of(const Options& options, RunLength length);

}  // namespace lockstep::train
