// Streams of tasks, and one worker that runs the tasks late and in any order that the streams
// allow: a seed chooses among the streams whose first task is ready. In a lazy schedule, tasks run
// only while a host waits, and only until the wait ends.
#pragma once

#include "support/accelerator/clock.h"
#include "support/accelerator/reports.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

// A condition for a task to run, in addition to the order of its stream. Guarded by the machine's
// mutex.
class Gate {
 public:
  Gate() = default;
  virtual ~Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  // Called, possibly more than once, when the task is the first of its stream.
  virtual void arrive() = 0;
  [[nodiscard]] virtual bool is_open() const = 0;
  // Opens the gate permanently, after a stall was reported.
  virtual void give_up() = 0;
  [[nodiscard]] virtual std::string state() const = 0;
};

struct Task {
  std::string name;
  std::function<void()> run;  // null: a wait
  std::vector<Event> after = {};
  std::shared_ptr<Gate> gate = nullptr;
};

using MachineLock = std::unique_lock<std::mutex>;

// Every function needs the machine's mutex.
class Scheduler {
 public:
  explicit Scheduler(Reports& reports) : reports_(reports) {}
  // Runs tasks forever; unlocks the mutex while a task runs.
  void work(MachineLock& lock);

  void choose_by(std::uint64_t seed, bool lazy, std::chrono::milliseconds longest_idle);
  void push(Actor stream, Task task);
  // The number of tasks that were pushed to the stream, and the number that have finished.
  [[nodiscard]] std::uint64_t given(Actor stream) const { return queues_.at(stream).given; }
  [[nodiscard]] std::uint64_t done(Actor stream) const { return queues_.at(stream).done; }
  [[nodiscard]] bool is_done(const Event& event) const;
  // Blocks until done() is true. If no stream can continue, reports a stall and opens all gates.
  void block_until(MachineLock& lock, std::function<bool()> done);
  // For a host that polls for an event. If nothing was pushed between many polls, the host waits:
  // blocks until the event is done or no stream can continue. Otherwise, runs a task in some of the
  // calls.
  void advance(MachineLock& lock, const Event& event);
  void wake() { runnable_.notify_one(); }

 private:
  struct Queue {
    std::deque<Task> tasks;
    std::uint64_t given = 0;
    std::uint64_t done = 0;
    bool is_running = false;
  };
  struct Waiter {
    std::function<bool()> done;
    bool is_satisfied = false;
  };

  [[nodiscard]] bool may_run() const { return !is_lazy_ || !waiters_.empty(); }
  // Returns true if the events that the task comes after are done.
  [[nodiscard]] bool may_begin(const Task& task) const;
  [[nodiscard]] bool is_ready(const Queue& queue) const;
  [[nodiscard]] std::vector<Actor> ready_streams();
  void run_one(MachineLock& lock, Actor stream);
  // Removes satisfied waits, so that the worker stops running tasks for them.
  void settle_waiters();
  [[nodiscard]] std::uint64_t progress() const;
  void report_stall();

  Reports& reports_;
  std::condition_variable runnable_;   // for the worker
  std::condition_variable satisfied_;  // for hosts that wait
  std::array<Queue, stream_count> queues_;
  std::vector<Waiter*> waiters_;
  std::mt19937_64 random_{1};
  int polls_ = 0;
  int polls_since_push_ = 0;
  bool is_lazy_ = true;
  std::chrono::milliseconds longest_idle_{0};  // then a stall is reported
};

}  // namespace lockstep::test::accelerator
