// A count and the lock of those who move it on, in one word: to take it is one atomic operation, to
// give it back a store, and to read the count neither. A thread that finds it taken offers its core
// for a while and then sleeps between looks: it may be held as long as a large copy takes. So it is
// for what rarely meets.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include <sched.h>

namespace lockstep::shm {

class GuardedCount {
 public:
  [[nodiscard]] std::uint64_t count() const {
    return word_.load(std::memory_order_acquire) & ~taken;
  }

  // BasicLockable, for std::lock_guard.
  void lock() {
    for (int looks = 0;;) {
      std::uint64_t seen = count();
      if (word_.compare_exchange_weak(seen, seen | taken, std::memory_order_acquire)) return;
      if ((seen & taken) != 0) wait(looks++);
    }
  }
  void unlock() { word_.store(count(), std::memory_order_release); }
  // By the thread that has locked it.
  void set(std::uint64_t count) { word_.store(count | taken, std::memory_order_release); }

 private:
  static void wait(int looks) {
    constexpr int offers = 100;
    if (looks < offers)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  static constexpr std::uint64_t taken = std::uint64_t{1} << 63;
  std::atomic<std::uint64_t> word_{0};
};

}  // namespace lockstep::shm
