// A count and the lock of those who move it on, in one word: to take it is one atomic operation, to
// give it back a store, and to read the count neither. Who finds it taken offers its core until it
// is free, so it is for what rarely meets.
#pragma once

#include <atomic>
#include <cstdint>

#include <sched.h>

namespace lockstep::shm {

class GuardedCount {
 public:
  [[nodiscard]] std::uint64_t count() const {
    return word_.load(std::memory_order_acquire) & ~taken;
  }

  // BasicLockable, for std::lock_guard.
  void lock() {
    for (;;) {
      std::uint64_t seen = count();
      if (word_.compare_exchange_weak(seen, seen | taken, std::memory_order_acquire)) return;
      if ((seen & taken) != 0) sched_yield();
    }
  }
  void unlock() { word_.store(count(), std::memory_order_release); }
  // By who has locked it.
  void set(std::uint64_t count) { word_.store(count | taken, std::memory_order_release); }

 private:
  static constexpr std::uint64_t taken = std::uint64_t{1} << 63;
  std::atomic<std::uint64_t> word_{0};
};

}  // namespace lockstep::shm
