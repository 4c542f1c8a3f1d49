// What the three optimizers do alike around their updates.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <vector>

namespace lockstep::optim {

// Undefined without a closure.
[[nodiscard]] inline at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  at::AutoGradMode with_gradients(true);
  return closure();
}

// The gradients that are defined.
[[nodiscard]] inline std::vector<at::Tensor> gradients_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> gradients;
  for (const auto& group : groups)
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return gradients;
}

}  // namespace lockstep::optim
