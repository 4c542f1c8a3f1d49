#include "sys/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace lockstep::sys {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                Duration most) noexcept {
  most = std::clamp(most, Duration::zero(), Duration(std::chrono::hours(24)));
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  timespec left{static_cast<time_t>(seconds.count()), static_cast<long>((most - seconds).count())};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &left, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lockstep::sys
