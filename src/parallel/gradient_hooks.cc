#include "parallel/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace lockstep::parallel {
namespace autograd = torch::autograd;

struct GradientHooks::Hook : autograd::PostAccumulateGradHook {
  Hook(std::weak_ptr<Calls> of_owner, int of_parameter)
      : calls(std::move(of_owner)), number(of_parameter) {}

  void operator()(const autograd::Variable& parameter) override {
    if (previous) (*previous)(parameter);
    if (auto owner = calls.lock()) owner->on_gradient(number);
  }

  std::weak_ptr<Calls> calls;
  int number;
  std::unique_ptr<autograd::PostAccumulateGradHook> previous;
};

const GradientHooks::Hook* GradientHooks::living_hook(const at::Tensor& parameter) {
  if (!parameter.requires_grad()) return nullptr;
  auto* hook = dynamic_cast<Hook*>(autograd::impl::post_acc_grad_hooks(parameter).get());
  while (hook != nullptr && hook->calls.expired()) hook = dynamic_cast<Hook*>(hook->previous.get());
  return hook;
}

bool is_hooked(const at::Tensor& parameter) {
  return GradientHooks::living_hook(parameter) != nullptr;
}

bool is_averaged(const at::Tensor& parameter) {
  const GradientHooks::Hook* hook = GradientHooks::living_hook(parameter);
  const auto owner = hook != nullptr ? hook->calls.lock() : nullptr;
  return owner && owner->has_averages && owner->has_averages();
}

GradientHooks::GradientHooks(std::vector<at::Tensor> parameters, OnGradient on_gradient,
                             HasAverages has_averages)
    : parameters_(std::move(parameters)),
      calls_(std::make_shared<Calls>(std::move(on_gradient), std::move(has_averages))) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto hook = std::make_unique<Hook>(calls_, static_cast<int>(i));
    hook->previous = std::move(autograd::impl::post_acc_grad_hooks(parameters_[i]));
    autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::move(hook));
  }
}

GradientHooks::~GradientHooks() {
  calls_.reset();
  for (at::Tensor& parameter : parameters_) {
    auto& slot = autograd::impl::post_acc_grad_hooks(parameter);
    // Those without a living owner go, not only our own: another handle may have been removed while
    // ours was above it.
    for (auto* hook = dynamic_cast<Hook*>(slot.get()); hook != nullptr && hook->calls.expired();
         hook = dynamic_cast<Hook*>(slot.get())) {
      auto previous = std::move(hook->previous);
      slot = std::move(previous);
    }
  }
}

}  // namespace lockstep::parallel
