// Ticks: the cheapest clock there is, for stamps that are turned into times only when somebody
// reads them.
#pragma once

#include <lockstep/base/deadline.h>

#include <chrono>
#include <cstdint>

namespace lockstep::sys {

// Of a counter that runs at a constant rate on all cores: about ten nanoseconds, no system call.
[[nodiscard]] inline std::uint64_t ticks() {
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

// Knows the rate of the ticks from its own age: what happened meanwhile is placed exactly.
class TickScale {
 public:
  using WallClock = std::chrono::system_clock;

  // The time of day at which the counter stood at `stamp`, in seconds since 1970.
  [[nodiscard]] double seconds_of(std::uint64_t stamp) const {
    auto now_ticks = ticks();
    auto age = std::chrono::duration<double>(Clock::now() - begin_).count();
    auto now = std::chrono::duration<double>(WallClock::now().time_since_epoch()).count();
    auto per_tick =
        now_ticks > begin_ticks_ ? age / static_cast<double>(now_ticks - begin_ticks_) : 0.0;
    return now - static_cast<double>(static_cast<std::int64_t>(now_ticks - stamp)) * per_tick;
  }

 private:
  std::uint64_t begin_ticks_ = ticks();
  Clock::time_point begin_ = Clock::now();
};

}  // namespace lockstep::sys
