// Futexes on words that several processes map. A wait may end for no reason: callers check their
// condition again.
#pragma once

#include <lockstep/base/deadline.h>

#include <atomic>
#include <cstdint>

namespace lockstep::sys {

// Sleeps while `word` is `expected`, until a wake, a signal, or `most` has passed. Says nothing
// about why it ended.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                Duration most) noexcept;

// Wakes every sleeper on `word`, in every process.
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace lockstep::sys
