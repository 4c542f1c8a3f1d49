// What all optimizers do alike around their updates.
#pragma once

#include "base/check.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/flat_hash_map.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace lockstep::optim {

// Undefined without a closure.
[[nodiscard]] inline at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  at::AutoGradMode with_gradients(true);
  return closure();
}

[[nodiscard]] inline std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : groups)
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

// InvalidArgument where a product would be lost in its own dtype, as PyTorch refuses it.
inline void check_can_scale(std::span<const at::Tensor> parameters, double factor) {
  for (std::size_t i = 0; factor < 1 && i < parameters.size(); ++i)
    check(!parameters[i].grad().defined() || parameters[i].grad().scalar_type() != at::kHalf,
          "unscaling: the gradient of parameter {} is float16, in which a small one would be lost; "
          "let scaler.step() of an optimizer of lockstep::optim unscale it, in float32, or keep "
          "parameters in float32",
          i);
}

// In place; nothing is written when the factor is 1.
inline void multiply_gradients(std::span<const at::Tensor> parameters, double factor) {
  if (factor == 1) return;
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
}

using StateMap = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

// The state of `parameter`, made where there is none, and made ours where it is torch::optim's.
template <class State, class TorchState>
State& own_state(StateMap& states, const at::Tensor& parameter) {
  std::unique_ptr<torch::optim::OptimizerParamState>& place =
      states[parameter.unsafeGetTensorImpl()];
  if (!place) place = std::make_unique<State>();
  if (auto* own = dynamic_cast<State*>(place.get())) return *own;
  auto* plain = dynamic_cast<TorchState*>(place.get());
  check(plain != nullptr, "optimizer: the state of a parameter is another optimizer's");
  auto own = std::make_unique<State>(*plain);
  State& state = *own;
  place = std::move(own);
  return state;
}

}  // namespace lockstep::optim
