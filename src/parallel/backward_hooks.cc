#include "parallel/backward_hooks.h"

#include "comm/backend/accelerator.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace lockstep::parallel {
namespace autograd = torch::autograd;

struct GradientHooks::Hook : autograd::PostAccumulateGradHook {
  Hook(std::weak_ptr<Calls> of_owner, int of_parameter)
      : calls(std::move(of_owner)), number(of_parameter) {}

  void operator()(const autograd::Variable& parameter) override {
    if (previous) (*previous)(parameter);
    const auto owner = calls.lock();
    if (!owner) return;
    owner->follow(parameter.device());
    owner->on_gradient(number);
  }

  std::weak_ptr<Calls> calls;
  int number;
  std::unique_ptr<autograd::PostAccumulateGradHook> previous;
};

void GradientHooks::Calls::follow(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return;
  const c10::Stream current = current_stream(device);
  Lock lock(mutex);
  c10::Stream& before = last.try_emplace(device.index(), current).first->second;
  order(before, current);
  before = current;
}

std::vector<std::shared_ptr<GradientHooks::Calls>> GradientHooks::owners(
    const at::Tensor& parameter) {
  std::vector<std::shared_ptr<Calls>> living;
  if (!parameter.requires_grad()) return living;
  auto* hook = dynamic_cast<Hook*>(autograd::impl::post_acc_grad_hooks(parameter).get());
  for (; hook != nullptr; hook = dynamic_cast<Hook*>(hook->previous.get()))
    if (auto owner = hook->calls.lock()) living.push_back(std::move(owner));
  return living;
}

bool is_hooked(const at::Tensor& parameter) { return !GradientHooks::owners(parameter).empty(); }

bool is_averaged(const at::Tensor& parameter) {
  const auto owners = GradientHooks::owners(parameter);
  return !owners.empty() && owners.front()->has_averages && owners.front()->has_averages();
}

bool is_averaged_twice(const at::Tensor& parameter) {
  auto* top =
      dynamic_cast<GradientHooks::Hook*>(autograd::impl::post_acc_grad_hooks(parameter).get());
  if (top == nullptr || top->previous == nullptr) return false;
  return std::ranges::count_if(GradientHooks::owners(parameter), [](const auto& owner) {
           return owner->averages && owner->averages();
         }) > 1;
}

GradientHooks::GradientHooks(std::vector<at::Tensor> parameters, OnGradient on_gradient,
                             Asked has_averages, Asked averages)
    : parameters_(std::move(parameters)),
      calls_(std::make_shared<Calls>(std::move(on_gradient), std::move(has_averages),
                                     std::move(averages))) {
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
    // Remove all hooks without a living owner, not only our own: another handle may have been
    // removed while our hook was above its hook.
    for (auto* hook = dynamic_cast<Hook*>(slot.get()); hook != nullptr && hook->calls.expired();
         hook = dynamic_cast<Hook*>(slot.get())) {
      auto previous = std::move(hook->previous);
      slot = std::move(previous);
    }
  }
}

namespace {

// Stored in the task's list of callbacks, and destroyed with it.
struct Sentinel {
  explicit Sentinel(std::weak_ptr<BackwardObserver> observer) : observer(std::move(observer)) {}
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;
  ~Sentinel() {
    auto alive = called ? nullptr : observer.lock();
    if (alive) alive->on_backward_failed();
  }

  void end() {
    called = true;
    // The engine clears the node under evaluation when a top-level task ends; inside an outer task,
    // it is the outer task's node.
    if (auto alive = observer.lock())
      alive->on_backward_end(autograd::get_current_node() != nullptr);
  }

  std::weak_ptr<BackwardObserver> observer;
  bool called = false;
};

void end_with_current_task(std::shared_ptr<Sentinel> sentinel) {
  autograd::Engine::get_default_engine().queue_callback(
      [sentinel = std::move(sentinel)] { sentinel->end(); });
}

}  // namespace

int current_backward() { return autograd::get_current_graph_task_id(); }

void watch_backward(std::weak_ptr<BackwardObserver> observer) {
  end_with_current_task(std::make_shared<Sentinel>(std::move(observer)));
}

void watch_outer_backward(std::weak_ptr<BackwardObserver> observer) {
  // The hook runs in the outer task when the node's own work is done. It stays with the node, which
  // a retained graph may run again, so it moves its sentinel out; if the node fails, the sentinel
  // is destroyed with the graph.
  auto holder =
      std::make_shared<std::shared_ptr<Sentinel>>(std::make_shared<Sentinel>(std::move(observer)));
  auto action = [holder](const autograd::variable_list& outputs, const autograd::variable_list&) {
    if (auto sentinel = std::exchange(*holder, nullptr)) end_with_current_task(std::move(sentinel));
    return outputs;
  };
  autograd::get_current_node()->add_post_hook(
      std::make_unique<autograd::utils::LambdaPostHook>(std::move(action)));
}

void StepWatch::watch() {
  int task = current_backward();
  if (std::ranges::find(watched_, task) != watched_.end()) return;
  watched_.push_back(task);
  ++running_;
  watch_backward(weak_from_this());
}

bool StepWatch::is_over(bool nested, bool complete) {
  --running_;
  if (complete) return true;
  if (running_ > 0) return false;
  if (!nested) return true;
  ++running_;
  watch_outer_backward(weak_from_this());
  return false;
}

}  // namespace lockstep::parallel
