// StepClock: measures the phases of training steps (StepTiming of lockstep/parallel/handle.h).
//
// Thread-safe.
#pragma once

#include "base/mutex.h"

#include <lockstep/parallel/handle.h>

#include <ATen/record_function.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace lockstep::parallel {

// WaitTime: how long a rank was blocked in waits for collectives. Communication that overlaps with
// other work does not count.
//
// Thread-safe.
class WaitTime {
 public:
  // Measures one wait.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(WaitTime& time) : time_(time), began_(Clock::now()) {
      if (recorded_.isActive()) recorded_.before("communication");
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { time_.nanoseconds_ += std::chrono::nanoseconds(Clock::now() - began_).count(); }

   private:
    WaitTime& time_;
    std::chrono::steady_clock::time_point began_;
    at::RecordFunction recorded_{at::RecordScope::USER_SCOPE};  // for LibTorch's profiler
  };

  [[nodiscard]] double seconds() const { return static_cast<double>(nanoseconds_.load()) * 1e-9; }

 private:
  using Clock = std::chrono::steady_clock;

  std::atomic<std::int64_t> nanoseconds_ = 0;
};

class StepClock {
 public:
  // `waited`: returns the seconds of waits so far.
  explicit StepClock(std::function<double()> waited) : waits_(std::move(waited)) {}
  explicit StepClock(std::shared_ptr<WaitTime> waits)
      : StepClock([waits = std::move(waits)] { return waits->seconds(); }) {}

  void zero_grad() {
    Lock lock(mutex_);
    if (phase_ != Phase::update) return;
    total_.update += lap();
    phase_ = Phase::forward;
  }
  // Call at the first gradient of a backward().
  void first_gradient() {
    Lock lock(mutex_);
    if (double seconds = lap(); phase_ != Phase::none) total_.forward += seconds;
    phase_ = Phase::backward;
    waited_ = waits_();
  }
  // `reduced`: an update comes next, otherwise another forward.
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

  // Returns the seconds since the last call.
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
