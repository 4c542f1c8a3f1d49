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
// Whether the owner of such a hook has averaged the gradients of the last backward() over ranks.
[[nodiscard]] bool is_averaged(const at::Tensor& parameter);

class GradientHooks {
 public:
  using OnGradient = std::function<void(int)>;
  using HasAverages = std::function<bool()>;

  // on_gradient(i) runs in the thread of backward(), after parameters[i].grad was written: once a
  // backward(), also for a parameter used twice; never for an unused one. What it throws ends that
  // backward().
  // `has_averages` is asked by is_averaged(); null: never.
  GradientHooks(std::vector<at::Tensor> parameters, OnGradient on_gradient,
                HasAverages has_averages = nullptr);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Calls {
    OnGradient on_gradient;
    HasAverages has_averages;
  };
  struct Hook;
  friend bool is_hooked(const at::Tensor& parameter);
  friend bool is_averaged(const at::Tensor& parameter);

  // The first whose owner lives; null: none.
  [[nodiscard]] static const Hook* living_hook(const at::Tensor& parameter);

  std::vector<at::Tensor> parameters_;
  std::shared_ptr<Calls> calls_;
};

}  // namespace lockstep::parallel
