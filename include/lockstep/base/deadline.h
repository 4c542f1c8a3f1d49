// A point in time by which something must have happened. A value: pass it down through the calls
// that share it, so that three waits of a five-second operation take five seconds together and not
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
  // `duration` from now; Duration::max() or more than a century is never.
  [[nodiscard]] static Deadline after(Duration duration) {
    return duration > std::chrono::hours(24 * 36500) ? never() : Deadline(Clock::now() + duration);
  }
  [[nodiscard]] static Deadline never() { return Deadline(Clock::time_point::max()); }

  [[nodiscard]] bool is_never() const { return at_ == Clock::time_point::max(); }
  [[nodiscard]] bool passed() const { return !is_never() && Clock::now() >= at_; }
  // Time that is left: 0 when passed, Duration::max() when never.
  [[nodiscard]] Duration left() const {
    return is_never() ? Duration::max() : std::max(Duration::zero(), Duration(at_ - Clock::now()));
  }
  // For poll() and epoll: milliseconds rounded up, -1 when never, at most `most`.
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
