// GradientHooks: calls a function for every parameter whose gradient is complete, during the
// object's lifetime.
//
// LibTorch has one post-accumulate slot per tensor. An existing hook runs first and is restored
// when ours is removed; if other code has taken the slot (and chained our hook), ours stays in that
// chain and does nothing.
#pragma once

#include "base/mutex.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::parallel {

// Returns true if the parameter has a hook of a living GradientHooks.
[[nodiscard]] bool is_hooked(const at::Tensor& parameter);
// Returns true if the owner of such a hook has averaged the gradients of the last backward() over
// ranks.
[[nodiscard]] bool is_averaged(const at::Tensor& parameter);
// Returns true if several living owners of such hooks would average its gradients now.
[[nodiscard]] bool is_averaged_twice(const at::Tensor& parameter);

class GradientHooks {
 public:
  using OnGradient = std::function<void(int)>;
  using Asked = std::function<bool()>;

  // Calls on_gradient(i) in the thread of backward() after parameters[i].grad was written: once per
  // backward(), also for a parameter that is used twice; never for an unused one. Its exceptions
  // end that backward(). On a device, backward() calls it on the stream that used the parameter
  // first, and each call is ordered after the work of the calls before. is_averaged() calls
  // `has_averages`, and is_averaged_twice() calls `averages`; null: false.
  GradientHooks(std::vector<at::Tensor> parameters, OnGradient on_gradient,
                Asked has_averages = nullptr, Asked averages = nullptr);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Calls {
    // Orders the current stream of a device after the one of the call before.
    void follow(c10::Device device);

    const OnGradient on_gradient;
    const Asked has_averages, averages;
    Mutex mutex = {};
    std::map<c10::DeviceIndex, c10::Stream> last LOCKSTEP_GUARDED_BY(mutex) = {};
  };
  struct Hook;
  friend bool is_hooked(const at::Tensor& parameter);
  friend bool is_averaged(const at::Tensor& parameter);
  friend bool is_averaged_twice(const at::Tensor& parameter);

  // Returns the living owners of the parameter's hooks, the latest first.
  [[nodiscard]] static std::vector<std::shared_ptr<Calls>> owners(const at::Tensor& parameter);

  std::vector<at::Tensor> parameters_;
  std::shared_ptr<Calls> calls_;
};

// BackwardWatch: notifies an observer when a running backward() has ended.
//
// The engine runs callbacks at the end of a graph task, which is one call of backward(); a
// backward() inside a node of another one is a separate task. The watch continues from an inner
// task to the enclosing one, and notices when an exception destroys a task before its end.
class BackwardObserver {
 public:
  virtual ~BackwardObserver() = default;
  // Called in the thread of the watched backward() after it has computed everything; backward()
  // throws its exceptions. If `nested`, an outer backward() is still running, and
  // watch_outer_backward() may be called.
  virtual void on_backward_end(bool nested) = 0;
  // Called when an exception has ended the backward(), during stack unwinding: must not throw.
  virtual void on_backward_failed() noexcept = 0;
};

// The backward() calls of one training step: more than one if some of them are nested. Not
// thread-safe.
class StepWatch : public BackwardObserver, public std::enable_shared_from_this<StepWatch> {
 public:
  // Call with each gradient: watches the backward() that it comes from, unless it is watched
  // already.
  void watch();
  // Call from the owner's on_backward_end(). Returns true if the step has ended: because `complete`
  // is true, or because no backward() is running any more. Otherwise watches the outer backward()
  // from then on.
  [[nodiscard]] bool is_over(bool nested, bool complete);

 private:
  std::vector<int> watched_;
  int running_ = 0;  // backward() calls that have not ended
};

// Forwards to the same two methods of an owner while it lives. An owner makes one observer per
// step, and drops it at the end of the step: remaining watches then notify no object.
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

// Returns the id of the innermost backward() running in this thread; -1 if there is no running
// backward().
[[nodiscard]] int current_backward();

// Watches the innermost backward(). The observer is called exactly once in any case, if it still
// exists.
void watch_backward(std::weak_ptr<BackwardObserver> observer);

// Call from on_backward_end(nested = true): watches the enclosing backward().
void watch_outer_backward(std::weak_ptr<BackwardObserver> observer);

}  // namespace lockstep::parallel
