// BackwardClock: measures the phases of steps under tensor parallelism, where gradients of the
// module's parameters arrive one by one and there is no reduction at the end.
//
// Not thread-safe: called by the parameters' nodes, one at a time, and by the handle.
#pragma once

#include "parallel/backward_hooks.h"
#include "parallel/step_clock.h"

#include <functional>
#include <memory>
#include <utility>

namespace lockstep::tensor_parallel {

class BackwardClock final : public std::enable_shared_from_this<BackwardClock> {
 public:
  // `waited`: returns the seconds of waits so far. `averages`: returns true if an update may
  // follow.
  BackwardClock(std::function<double()> waited, std::function<bool()> averages)
      : clock_(std::move(waited)), averages_(std::move(averages)) {}

  void zero_grad() { clock_.zero_grad(); }
  // Call when a parameter gets a gradient.
  void on_gradient() {
    if (step_ == nullptr) {
      clock_.first_gradient();
      step_ = std::make_shared<Observer>(weak_from_this());
    }
    step_->watch();
  }
  [[nodiscard]] StepTiming total() const { return clock_.total(); }

 private:
  using Observer = parallel::StepObserver<BackwardClock>;
  friend Observer;

  // A strategy that trains the parts ends before this clock.
  void on_backward_end(bool nested) {
    if (step_ == nullptr) return;
    if (is_ending_) return end(averages_());
    if (!step_->is_over(nested, /*complete=*/false)) return;
    is_ending_ = true;
    parallel::watch_backward(step_);
  }
  void on_backward_failed() noexcept { end(false); }
  void end(bool averaged) {
    is_ending_ = false;
    if (std::exchange(step_, nullptr) != nullptr) clock_.backward_ended(averaged);
  }

  parallel::StepClock clock_;
  std::function<bool()> averages_;
  std::shared_ptr<Observer> step_;  // null: no backward() is running
  bool is_ending_ = false;
};

}  // namespace lockstep::tensor_parallel
