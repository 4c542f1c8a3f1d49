// Waiting: how long a thread looks again before it sleeps, and how it is woken.
//
// The protocol of a doorbell (Dekker's, over two words):
//   sleeper: sleepers += 1; remember rings; look for work again; if there is none, sleep while
//            rings is unchanged
//   ringer:  change something; if sleepers != 0: rings += 1, wake all
// All four accesses are sequentially consistent. So is the change, or a fence stands between it and
// the ring; and a fence stands between the sleeper's count and its look, whose accesses may then be
// weaker. So either the ringer sees the sleeper, or the sleeper's look comes after the change and
// sees it. A ring between the look and the sleep has changed `rings`, and the futex does not sleep.
// Without sleepers a ring is one load and no system call.
#pragma once

#include "comm/engines/shm/control.h"
#include "sys/futex.h"

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include <sched.h>

namespace lockstep::shm {

inline void ring(Doorbell& bell) {
  if (bell.sleepers.load(std::memory_order_seq_cst) == 0) return;
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  sys::futex_wake_all(bell.rings);
}

// Sleeps at most `most`, or not at all when look() finds something.
template <typename Look>
void sleep_until_rung(Doorbell& bell, Duration most, Look&& look) {
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  auto rings = bell.rings.load(std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!look()) sys::futex_wait(bell.rings, rings, most);
  bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What the threads of a process have learned about the cores that they offer while they wait. When
// an offered core comes back late, another process computes there: it is better then to sleep at
// once and be woken in front of him. But a wake costs a hundred times what an offer does that
// nobody takes, and one rank that sleeps makes others sleep. So a core that is lost now and then
// changes nothing: what counts is the share of the time. Each loss is a debt that time pays off, 32
// times as slowly; while more than a few losses are owed, waits sleep.
class YieldBudget {
 public:
  [[nodiscard]] bool are_ours(Clock::time_point now) const {
    return paid_off_.load(std::memory_order_relaxed) <=
           (now + price * most_debt).time_since_epoch();
  }
  // Returns the time when the core came back.
  Clock::time_point offer() {
    auto begin = Clock::now();
    sched_yield();
    auto end = Clock::now();
    if (end - begin > soon) {
      auto paid_off = std::max(paid_off_.load(std::memory_order_relaxed), end.time_since_epoch());
      paid_off_.store(paid_off + price * (end - begin), std::memory_order_relaxed);
    }
    return end;
  }

 private:
  static constexpr auto soon = std::chrono::microseconds(400);
  static constexpr Duration most_debt = std::chrono::milliseconds(10);
  static constexpr int price = 32;
  std::atomic<Duration> paid_off_{};  // when the last debt is, since the clock's epoch
};

// A thread that finds nothing to do looks again for as long as that is worth it: longer than most
// interruptions last. At first it keeps its core, unless ranks share cores; then it offers it at
// each look, because the peer may have been put on the same one.
class SpinPolicy {
 public:
  SpinPolicy(YieldBudget& cores, bool has_core) : cores_(cores), has_core_(has_core) {}

  void restart() {
    stage_ = Stage::glancing;
    glances_ = 0;
  }
  // True: look again. False: sleep.
  [[nodiscard]] bool has_more() {
    if (stage_ == Stage::glancing) {
      if (has_core_ && glances_++ < glances_without_clock) {
        pause_briefly();
        return true;
      }
      begin_ = Clock::now();
      stage_ = Stage::keeping;
    }
    if (stage_ == Stage::keeping) {
      auto now = has_core_ ? Clock::now() : begin_;
      if (has_core_ && now - begin_ < spin) {
        pause_briefly();
        return true;
      }
      if (!cores_.are_ours(now)) return ends();
      stage_ = Stage::offering;
    }
    return cores_.offer() - begin_ < worth_looking || ends();
  }

 private:
  enum class Stage { glancing, keeping, offering };
  static constexpr int glances_without_clock = 20;
  static constexpr auto spin = std::chrono::microseconds(2);
  static constexpr Duration worth_looking = std::chrono::milliseconds(1);

  // After the sleep, the same again: a wait must come to its deadline.
  bool ends() {
    restart();
    return false;
  }

  YieldBudget& cores_;
  bool has_core_;
  Stage stage_ = Stage::glancing;
  int glances_ = 0;
  Clock::time_point begin_;
};

}  // namespace lockstep::shm
