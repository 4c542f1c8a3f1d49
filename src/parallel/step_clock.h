// StepClock: where the time of training steps goes (StepTiming of lockstep/parallel/handle.h).
//
// Thread-safe.
#pragma once

#include "base/mutex.h"
#include "parallel/wait_time.h"

#include <lockstep/parallel/handle.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace lockstep::parallel {

class StepClock {
 public:
  // `waited`: seconds of waits so far.
  explicit StepClock(std::function<double()> waited) : waits_(std::move(waited)) {}
  explicit StepClock(std::shared_ptr<WaitTime> waits)
      : StepClock([waits = std::move(waits)] { return waits->seconds(); }) {}

  void zero_grad() {
    Lock lock(mutex_);
    if (phase_ != Phase::update) return;
    total_.update += lap();
    phase_ = Phase::forward;
  }
  // Of a backward().
  void first_gradient() {
    Lock lock(mutex_);
    if (double seconds = lap(); phase_ != Phase::none) total_.forward += seconds;
    phase_ = Phase::backward;
    waited_ = waits_();
  }
  // `reduced`: an update comes next, else another forward.
  void backward_ended(bool reduced) {
    Lock lock(mutex_);
    double exposed = waits_() - waited_;
    total_.exposed += exposed;
    total_.backward += lap() - exposed;
    if (reduced) ++total_.steps;
    phase_ = reduced ? Phase::update : Phase::forward;
  }

  [[nodiscard]] StepTiming total() const {
    Lock lock(mutex_);
    return total_;
  }

 private:
  enum class Phase { none, forward, backward, update };
  using Clock = std::chrono::steady_clock;

  // Seconds since the last call.
  double lap() LOCKSTEP_REQUIRES(mutex_) {
    Clock::time_point now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

  const std::function<double()> waits_;
  mutable Mutex mutex_;
  Phase phase_ LOCKSTEP_GUARDED_BY(mutex_) = Phase::none;
  Clock::time_point last_ LOCKSTEP_GUARDED_BY(mutex_);
  double waited_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // when backward() began
  StepTiming total_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::parallel
