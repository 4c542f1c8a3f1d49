// ProgressEngine: executes what the channels of one process have under way, on the threads that
// post and wait, and on a helper thread where there are cores to spare. It knows channels and
// nothing above them.
//
// Invariants:
//   - mutex_ guards what threads of this process share about progress: the lists of channels, and
//     the channels' records. It is held for claims and posts, never while bytes are moved or a
//     thread sleeps.
//   - A thread that has claimed a segment executes it without any lock; the claim keeps operation,
//     record and channel alive.
#pragma once

#include "comm/engines/shm/channel.h"
#include "sys/thread.h"

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <sched.h>

namespace lockstep::shm {

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

class ProgressEngine {
 public:
  explicit ProgressEngine(const Peers& peers);
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  // Where there are more cores than ranks, a thread helps from now on, until stop_helping().
  void start_helping();
  void stop_helping();

  // For the owner of channels, under mutex():
  // the engine executes their operations, until remove(), which is before they go;
  void add(Channel& channel) { channels_.push_back(&channel); }
  void remove(std::span<Channel* const> channels);
  // it looks for work in them no more;
  void forget(std::span<Channel* const> channels);
  // and no thread of this process begins anything of those.
  void stop(std::span<Channel* const> channels);
  [[nodiscard]] std::mutex& mutex() { return mutex_; }

  // Posts what the channel has prepared, and executes this rank's part of what is ready. False: the
  // channel has been stopped, and nothing is posted.
  [[nodiscard]] bool post(Channel& channel, const CallInfo& info);
  // Makes progress until `awaited` is complete. False: the group has failed, of this wait's
  // deadline or of anything else.
  [[nodiscard]] bool wait(Channel& channel, const Awaited& awaited, Duration timeout);
  // Executes one segment if there is one to be had.
  bool progress(ProgressScope scope);
  // The same where nobody could be told that there is no memory for it: says so and tries no more.
  bool try_progress(ProgressScope scope) noexcept;
  // Asks the watchers of late_members() to look at what they have posted; returns those members.
  std::vector<int> urge(const Channel& channel, const Awaited& awaited);
  // A peer asks this process to look: it waits for inline inputs to be read.
  void on_urge(int rank);
  // Whether operations under way in channels of other groups use bytes of that buffer.
  [[nodiscard]] bool is_used_besides(const SharedGroup& group, Buffer buffer);

  // `action` is called after progress, without the mutex, while so many are due (any thread).
  void set_due_action(std::function<void()> action) { due_action_ = std::move(action); }
  void set_due(std::size_t due) { due_.store(due, std::memory_order_relaxed); }

 private:
  // Claims a segment and marks it, if there is a place for the mark.
  [[nodiscard]] std::optional<std::size_t> claim(ProgressScope scope, Channel::Task& task);
  [[nodiscard]] bool claim_of_busy(ProgressScope scope, Channel::Task& task);
  void execute(const Channel::Task& task, std::size_t place);
  // Whether progress() would find nothing, as far as can be seen without the mutex: no other
  // channel has work, and this one waits for posts.
  [[nodiscard]] bool has_nothing_but(const Channel& channel) const;
  void note_busy() { busy_channels_.store(busy_.size(), std::memory_order_relaxed); }
  void help();

  const Peers& peers_;
  Control& control_;
  const bool has_core_;  // as many cores as ranks
  YieldBudget cores_;
  ExecutionMarks marks_;

  std::mutex mutex_;
  std::vector<Channel*> channels_;
  std::vector<Channel*> busy_;                 // channels with operations under way
  std::atomic<std::size_t> busy_channels_{0};  // how many; for a look without the mutex

  std::function<void()> due_action_;
  std::atomic<std::size_t> due_{0};
  std::atomic<bool> stopping_{false};
  sys::Thread helper_;
};

}  // namespace lockstep::shm
