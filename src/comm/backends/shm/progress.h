// ProgressEngine: executes the operations of one process's channels on the threads that post and
// wait, and on a helper thread if there are more cores than ranks. It uses channels and no layer
// above them.
//
// Invariants:
//   - mutex_ guards the lists of channels and the channels' records. It is held for claims and
//     posts, never while bytes are moved or a thread sleeps.
//   - A thread that has claimed a segment executes it without any lock; the claim keeps operation,
//     record and channel alive.
#pragma once

#include "comm/backends/shm/channel.h"
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

// Decides whether waits of this process yield their core (sched_yield()) or sleep; shared by all
// its threads. If a yielded core comes back late, another process computes on it, and it is better
// to sleep at once and let the wake-up preempt that process. But a wake-up costs a hundred times as
// much as a yield to no other thread, and one rank that sleeps makes others sleep. So a rare loss
// of a core must change nothing; only the share of lost time matters. Each loss adds 32 times its
// duration to a debt, which passing time pays off. While the debt is above a small limit, waits
// sleep.
class YieldBudget {
 public:
  [[nodiscard]] bool may_yield(Clock::time_point now) const {
    return paid_off_.load(std::memory_order_relaxed) <=
           (now + price * most_debt).time_since_epoch();
  }
  // Yields the core. Returns the time at which the core came back.
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
  std::atomic<Duration> paid_off_{};  // the time at which the debt is paid, since the clock's epoch
};

// How a thread without work polls before it sleeps: for longer than most interruptions last. At
// first it keeps its core, unless ranks share cores; then it yields after each poll, because the
// peer may be scheduled on the same core.
class SpinPolicy {
 public:
  SpinPolicy(YieldBudget& cores, bool has_core) : cores_(cores), has_core_(has_core) {}

  void restart() {
    stage_ = Stage::glancing;
    glances_ = 0;
  }
  // Returns true to poll again, false to sleep.
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
      if (!cores_.may_yield(now)) return reset();
      stage_ = Stage::offering;
    }
    return cores_.offer() - begin_ < worth_looking || reset();
  }

 private:
  enum class Stage { glancing, keeping, offering };
  static constexpr int glances_without_clock = 20;
  static constexpr auto spin = std::chrono::microseconds(2);
  static constexpr Duration worth_looking = std::chrono::milliseconds(1);

  // Restarts polling after the sleep, so that the wait can check its deadline.
  bool reset() {
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
  explicit ProgressEngine(const PeerMappings& peers);
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  // If there are more cores than ranks, starts a helper thread, which runs until stop_helping().
  void start_helping();
  void stop_helping();

  // For the owner of channels; call these under mutex(): Executes operations of the channel from
  // now on. Call remove() before the channel is destroyed.
  void add(Channel& channel) { channels_.push_back(&channel); }
  void remove(std::span<Channel* const> channels);
  // Stops looking for work in the channels.
  void forget(std::span<Channel* const> channels);
  // Like forget(); also prevents all threads of this process from beginning operations of the
  // channels.
  void stop(std::span<Channel* const> channels);
  [[nodiscard]] std::mutex& mutex() { return mutex_; }

  // Posts the operation that the channel has prepared, and executes this rank's part of ready
  // operations. Returns false if the channel has been stopped; then nothing is posted.
  [[nodiscard]] bool post(Channel& channel, const CallInfo& info);
  // Makes progress until `awaited` is complete. Returns false if the group has failed, because of
  // this wait's deadline or for another reason.
  [[nodiscard]] bool wait(Channel& channel, const Awaited& awaited, Duration timeout);
  // Executes one segment if one is available.
  bool progress(ProgressScope scope);
  // Like progress(), for threads that cannot report an error: logs the error and returns false.
  bool try_progress(ProgressScope scope) noexcept;
  // Wakes the watchers of late_members() to execute their posted operations; returns these members.
  std::vector<int> urge(const Channel& channel, const Awaited& awaited);
  // Handles urge() of a peer that waits until this process has read inline inputs.
  void on_urge(int rank);
  // Returns true if operations under way in channels of other groups use bytes of `buffer`.
  [[nodiscard]] bool is_used_besides(const SharedGroupState& group, Buffer buffer);

  // While set_due() is not 0, calls `action` after each progress, without holding the mutex, on any
  // thread.
  void set_due_action(std::function<void()> action) { due_action_ = std::move(action); }
  void set_due(std::size_t due) { due_.store(due, std::memory_order_relaxed); }

 private:
  // Claims a segment and marks it if there is a free place for the mark.
  [[nodiscard]] std::optional<std::size_t> claim(ProgressScope scope, Channel::Task& task);
  [[nodiscard]] bool claim_in_busy_channels(ProgressScope scope, Channel::Task& task);
  void execute(const Channel::Task& task, std::size_t place);
  // Returns true if progress() would find nothing to do, as far as can be seen without the mutex:
  // no other channel has work, and `channel` waits for posts.
  [[nodiscard]] bool has_nothing_but(const Channel& channel) const;
  void note_busy() { busy_channels_.store(busy_.size(), std::memory_order_relaxed); }
  void help();

  const PeerMappings& peers_;
  ControlPage& control_;
  const bool has_core_;  // at least as many cores as ranks
  YieldBudget cores_;
  ExecutionMarks marks_;

  std::mutex mutex_;
  std::vector<Channel*> channels_;
  std::vector<Channel*> busy_;                 // channels with operations under way
  std::atomic<std::size_t> busy_channels_{0};  // their number, readable without the mutex

  std::function<void()> due_action_;
  std::atomic<std::size_t> due_{0};
  std::atomic<bool> stopping_{false};
  sys::Thread helper_;
};

}  // namespace lockstep::shm
