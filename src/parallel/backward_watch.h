// BackwardWatch: tells when a running backward() has ended.
//
// The engine runs callbacks at the end of a graph task, which is one call of backward(); a
// backward() inside a node of another one is a task of its own. The watch follows from an inner
// task to the one around it, and notices when a task is destroyed by an exception instead of
// ending.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::parallel {

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
