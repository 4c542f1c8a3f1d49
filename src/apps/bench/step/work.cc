#include "apps/bench/step/work.h"

#include <lockstep/base/deadline.h>

#include <torch/utils.h>

namespace lockstep::apps {
namespace {

constexpr std::size_t kept_losses = 5;

BenchModel seeded_model(const StepWorkOptions& options) {
  torch::manual_seed(1);
  return make_bench_model(options.model, options.size);
}

}  // namespace

StepWork::StepWork(const StepWorkOptions& options, const Group& world)
    : training_(seeded_model(options), options.mode, options.fused, world) {
  for (int step = 0; step < uncounted_steps; ++step) (void)this->step();
}

double StepWork::step() {
  auto start = Clock::now();
  double loss = training_.step();
  auto end = Clock::now();
  if (losses_.size() < kept_losses) losses_.push_back(loss);
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace lockstep::apps
