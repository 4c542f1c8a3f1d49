// The processor's timestamp counter: the cheapest clock, for timestamps that are converted to times
// only when they are read.
#pragma once

#include <lockstep/base/deadline.h>

#include <chrono>
#include <cstdint>

namespace lockstep::sys {

// Returns the counter, which runs at a constant rate on all cores. Takes about ten nanoseconds,
// without a system call.
[[nodiscard]] inline std::uint64_t timestamp() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
#endif
}

// Measures the rate of the counter over its own lifetime, so it converts timestamps of that period
// exactly.
class TimestampScale {
 public:
  using WallClock = std::chrono::system_clock;

  // Returns the wall-clock time of a timestamp, in seconds since 1970.
  [[nodiscard]] double seconds_of(std::uint64_t stamp) const {
    auto now_stamp = timestamp();
    auto age = std::chrono::duration<double>(Clock::now() - begin_).count();
    auto now = std::chrono::duration<double>(WallClock::now().time_since_epoch()).count();
    auto per_count =
        now_stamp > begin_stamp_ ? age / static_cast<double>(now_stamp - begin_stamp_) : 0.0;
    return now - static_cast<double>(static_cast<std::int64_t>(now_stamp - stamp)) * per_count;
  }

 private:
  std::uint64_t begin_stamp_ = timestamp();
  Clock::time_point begin_ = Clock::now();
};

}  // namespace lockstep::sys
