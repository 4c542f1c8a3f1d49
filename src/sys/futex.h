// Futexes on words that several processes map. Waits can end spuriously, so callers must check
// their condition again.
#pragma once

#include <lockstep/base/deadline.h>

#include <atomic>
#include <cstdint>

namespace lockstep::sys {

// Sleeps while `word` equals `expected`, until it is woken, a signal arrives, or `most` has passed.
// Does not report which of these happened.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                Duration most) noexcept;

// Wakes all threads that sleep on `word`, in every process.
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace lockstep::sys
