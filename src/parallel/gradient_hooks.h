// GradientHooks: a call for every parameter whose gradient is complete, for as long as this object
// lives.
//
// LibTorch has one post-accumulate slot a tensor. What was there runs first and comes back when the
// hooks are removed; if other code has taken the slot (and chained our hook), ours stays in that
// chain and does nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace lockstep::parallel {

// Whether the parameter has a hook of a GradientHooks that lives.
[[nodiscard]] bool is_hooked(const at::Tensor& parameter);

class GradientHooks {
 public:
  using OnGradient = std::function<void(int)>;

  // on_gradient(i) runs in the thread of backward(), after parameters[i].grad was written: once a
  // backward(), also for a parameter used twice; never for an unused one. What it throws ends that
  // backward().
  GradientHooks(std::vector<at::Tensor> parameters, OnGradient on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
  std::shared_ptr<OnGradient> on_gradient_;
};

}  // namespace lockstep::parallel
