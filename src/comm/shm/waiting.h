// Waiting: how long a thread looks again before it sleeps, and how it is woken.
//
// The protocol of a doorbell (Dekker's, over two words):
//   sleeper: sleepers += 1; remember rings; look for work again; if there is none, sleep while
//            rings is unchanged
//   ringer:  change something; if sleepers != 0: rings += 1, wake all
// All four accesses, and those that change and look, are sequentially consistent. So either the
// ringer sees the sleeper, or the sleeper's look comes after the change and sees it. A ring between
// the look and the sleep has changed `rings`, and the futex does not sleep. Without sleepers a ring
// is one load and no system call.
#pragma once

#include "comm/shm/control.h"
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

// What the threads of a process have learned about the cores that they share with other ranks. When
// an offered core comes back late, somebody else computes there: it is better then to sleep at once
// and be woken in front of him. But a wake costs a hundred times what an offer among waiting ranks
// does, and one rank that sleeps makes others sleep. So a core that is lost now and then changes
// nothing: what counts is the share of the time. Each loss is a debt that time pays off, 32 times
// as slowly; while more than a few losses are owed, waits sleep.
class SharedCores {
 public:
  // As long as a wait may look: longer than most interruptions last.
  static constexpr Duration worth_looking = std::chrono::milliseconds(1);

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

// What the threads of a process have learned about how long to look before a sleep: for longer than
// a futex takes to wake a peer. With less, two ranks that have once slept keep waking each other,
// and pay that for every later operation. A wake takes some 20 us, and several 100 on a virtual
// machine whose cores are taken away meanwhile. So a sleep that was short makes the next waits look
// for as long as that. When one of them sleeps all the same, looking was of no use (the peer is
// busy, or shares the core), and the time is the usual one for a while.
class Sleeps {
 public:
  [[nodiscard]] Duration worth_looking() const {
    return is_long_.load(std::memory_order_relaxed) ? longest : usual;
  }
  void slept(Duration time) {
    if (is_long_.exchange(false, std::memory_order_relaxed)) {
      left_.store(sleeps_after_vain_look, std::memory_order_relaxed);
    } else if (left_.load(std::memory_order_relaxed) > 0) {
      left_.fetch_sub(1, std::memory_order_relaxed);
    } else {
      is_long_.store(time < longest, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr Duration usual = std::chrono::microseconds(30);
  static constexpr Duration longest = std::chrono::microseconds(300);
  static constexpr int sleeps_after_vain_look = 100;
  std::atomic<bool> is_long_{false};
  std::atomic<int> left_{0};  // until a short sleep counts again
};

// A thread that finds nothing to do looks again for as long as that is worth it. Most of that time
// it offers its core at each look, because the peer may have been put on the same one. When ranks
// share cores anyway, it offers it from the first look on.
class Patience {
 public:
  // `shared`: null when every rank has a core.
  Patience(SharedCores* shared, Duration longest) : shared_(shared), longest_(longest) {}

  void restart() { tries_ = 0; }
  // True: look again. False: sleep.
  [[nodiscard]] bool has_more() { return shared_ ? offers_core() : looks_longer(); }

 private:
  static constexpr int looks_without_clock = 20;
  static constexpr auto spin = std::chrono::microseconds(5);

  bool offers_core() {
    if (tries_ == 0) {
      begin_ = Clock::now();
      if (!shared_->are_ours(begin_)) return false;
    }
    bool goes_on = shared_->offer() - begin_ < SharedCores::worth_looking;
    tries_ = goes_on ? 1 : 0;  // after the sleep, the same again: a wait must come to its deadline
    return goes_on;
  }

  bool looks_longer() {
    if (tries_++ < looks_without_clock) {
      pause_briefly();
      return true;
    }
    auto now = Clock::now();
    if (tries_ == looks_without_clock + 1) begin_ = now;
    if (now - begin_ < spin) {
      pause_briefly();
    } else {
      sched_yield();
    }
    return now - begin_ < longest_;
  }

  SharedCores* shared_;
  Duration longest_;
  int tries_ = 0;
  Clock::time_point begin_;
};

}  // namespace lockstep::shm
