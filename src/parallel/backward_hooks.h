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
#include <utility>
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

// BackwardWatch: tells when a running backward() has ended.
//
// The engine runs callbacks at the end of a graph task, which is one call of backward(); a
// backward() inside a node of another one is a task of its own. The watch follows from an inner
// task to the one around it, and notices when a task is destroyed by an exception instead of
// ending.
class BackwardObserver {
 public:
  virtual ~BackwardObserver() = default;
  // The watched backward() has computed everything. Runs in its thread; what it throws, backward()
  // throws. When `nested`, an outer backward() is still running, and watch_outer() may be called.
  virtual void on_backward_end(bool nested) = 0;
  // An exception ended it. Runs while that is on its way up: must not throw.
  virtual void on_backward_failed() noexcept = 0;
};

// The backward() calls that one step of training consists of: more than one where some of them run
// inside others. Not thread-safe.
class StepWatch : public BackwardObserver, public std::enable_shared_from_this<StepWatch> {
 public:
  // Called with each gradient: watches the backward() that it comes from, unless it does so.
  void watch();
  // Called from the owner's on_backward_end(): whether the step has ended, because it is `complete`
  // or nothing is left that runs. An outer backward() is watched from then on.
  [[nodiscard]] bool is_over(bool nested, bool complete);

 private:
  std::vector<int> watched_;
  int running_ = 0;  // those that have not ended
};

// Tells an owner of the same two methods, while that lives. An owner makes one for each of its
// steps, and drops it when the step has ended: watches that are left then tell nobody.
template <class Owner>
class StepObserver final : public StepWatch {
 public:
  explicit StepObserver(std::weak_ptr<Owner> owner) : owner_(std::move(owner)) {}

  void on_backward_end(bool nested) override {
    if (auto owner = owner_.lock()) owner->on_backward_end(nested);
  }
  void on_backward_failed() noexcept override {
    if (auto owner = owner_.lock()) owner->on_backward_failed();
  }

 private:
  std::weak_ptr<Owner> owner_;
};

// Identifies the innermost backward() that is running in this thread; -1 when none is.
[[nodiscard]] int current_backward();

// Watches the innermost one. One call of the observer follows, whatever happens, if it is still
// there.
void watch_backward(std::weak_ptr<BackwardObserver> observer);

// Called from on_backward_end(nested = true): watches the backward() around it.
void watch_outer_backward(std::weak_ptr<BackwardObserver> observer);

}  // namespace lockstep::parallel
