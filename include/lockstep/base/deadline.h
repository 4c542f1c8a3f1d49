// A point in time by which an operation must have finished. Pass the value down through the calls
// that share it, so that three waits of a five-second operation take five seconds together, not
// fifteen.
#pragma once

#include <algorithm>
#include <chrono>

#pragma GCC visibility push(default)

namespace lockstep {

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::nanoseconds;

class Deadline {
 public:
  // Returns the deadline `duration` from now, or never() if `duration` is longer than a century.
  [[nodiscard]] static Deadline after(Duration duration) {
    return duration > std::chrono::hours(24 * 36500) ? never() : Deadline(Clock::now() + duration);
  }
  [[nodiscard]] static Deadline never() { return Deadline(Clock::time_point::max()); }

  [[nodiscard]] bool is_never() const { return at_ == Clock::time_point::max(); }
  [[nodiscard]] bool passed() const { return !is_never() && Clock::now() >= at_; }
  // Returns the time that is left: 0 if the deadline has passed, Duration::max() for never().
  [[nodiscard]] Duration left() const {
    return is_never() ? Duration::max() : std::max(Duration::zero(), Duration(at_ - Clock::now()));
  }
  // Returns the timeout for poll() and epoll_wait(): milliseconds rounded up, and at most `most`,
  // also for never(): check passed() after each call.
  [[nodiscard]] int poll_milliseconds(int most = 3'600'000) const {
    if (is_never()) return most;
    auto ms = std::chrono::ceil<std::chrono::milliseconds>(left()).count();
    return static_cast<int>(std::min<long long>(ms, most));
  }
  [[nodiscard]] Deadline or_sooner(Deadline other) const {
    return Deadline(std::min(at_, other.at_));
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace lockstep

#pragma GCC visibility pop
