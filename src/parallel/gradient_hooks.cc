#include "parallel/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace lockstep::parallel {
namespace {

namespace autograd = torch::autograd;

struct Hook : autograd::PostAccumulateGradHook {
  Hook(std::weak_ptr<GradientHooks::OnGradient> on_gradient, int number)
      : on_gradient(std::move(on_gradient)), number(number) {}

  void operator()(const autograd::Variable& parameter) override {
    if (previous) (*previous)(parameter);
    if (auto call = on_gradient.lock()) (*call)(number);
  }

  std::weak_ptr<GradientHooks::OnGradient> on_gradient;
  int number;
  std::unique_ptr<autograd::PostAccumulateGradHook> previous;
};

}  // namespace

bool is_hooked(const at::Tensor& parameter) {
  if (!parameter.requires_grad()) return false;
  auto* hook = dynamic_cast<Hook*>(autograd::impl::post_acc_grad_hooks(parameter).get());
  while (hook != nullptr && hook->on_gradient.expired())
    hook = dynamic_cast<Hook*>(hook->previous.get());
  return hook != nullptr;
}

GradientHooks::GradientHooks(std::vector<at::Tensor> parameters, OnGradient on_gradient)
    : parameters_(std::move(parameters)),
      on_gradient_(std::make_shared<OnGradient>(std::move(on_gradient))) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto hook = std::make_unique<Hook>(on_gradient_, static_cast<int>(i));
    hook->previous = std::move(autograd::impl::post_acc_grad_hooks(parameters_[i]));
    autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::move(hook));
  }
}

GradientHooks::~GradientHooks() {
  on_gradient_.reset();
  for (at::Tensor& parameter : parameters_) {
    auto& slot = autograd::impl::post_acc_grad_hooks(parameter);
    // Those without a living owner go, not only our own: another handle may have been removed while
    // ours was above it.
    for (auto* hook = dynamic_cast<Hook*>(slot.get());
         hook != nullptr && hook->on_gradient.expired(); hook = dynamic_cast<Hook*>(slot.get())) {
      auto previous = std::move(hook->previous);
      slot = std::move(previous);
    }
  }
}

}  // namespace lockstep::parallel
