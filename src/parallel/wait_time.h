// WaitTime: how long a rank has stood still in waits for collectives. What other work hides is not
// in it.
//
// Thread-safe.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::parallel {

class WaitTime {
 public:
  // Around a wait.
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

}  // namespace lockstep::parallel
