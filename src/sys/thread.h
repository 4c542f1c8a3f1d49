// A thread of the library. All signals are blocked in the thread, so that threads of the program
// handle them. In a forked child the thread does not exist, so a copy of the object does not join
// it.
#pragma once

#include "sys/own_process.h"

#include <lockstep/base/deadline.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace lockstep::sys {

class Thread {
 public:
  Thread() = default;
  // `name` is shown by debuggers and in /proc: at most 15 letters. `body` must not throw. Throws
  // SystemError if the system cannot start another thread.
  Thread(const char* name, std::function<void()> body);
  Thread(Thread&& other) noexcept = default;
  // Allowed only if this object has no joinable thread.
  Thread& operator=(Thread&& other) noexcept = default;
  // Ends the program if the thread is joinable, as std::thread does.
  ~Thread();

  [[nodiscard]] bool joinable() const { return thread_.joinable(); }
  // Does nothing in a forked child.
  void join();
  void detach();

 private:
  ForkAware process_;
  std::thread thread_;
};

// Runs `action` on a Thread and waits for its end. Threads that a third-party library starts in
// `action` therefore do not receive signals either, while the calling thread can still be
// interrupted. Rethrows exceptions of `action`.
void run_without_signals(const std::function<void()>& action);

// Work that may block for too long, such as a call to a store whose server is stopped.

// Runs `action`, which must not throw, on its own thread. Returns true if `action` ended within
// `limit`. Otherwise detaches the thread: `action` must own everything it uses.
[[nodiscard]] bool run_with_timeout(std::function<void()> action, Duration limit);

// A thread that runs tasks one after the other, in the order in which they were pushed.
class TaskQueue {
 public:
  TaskQueue();
  // Same as end() without a time limit.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // `task` must not throw.
  void push(std::function<void()> task);

  // Runs the remaining tasks, then ends the thread. Returns false if the thread has not ended
  // within `limit`: it is then detached, and the objects that its task holds live until it ends.
  bool end(Duration limit);

 private:
  // Also owned by the thread, because the thread may outlive the queue.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool ending = false;
    bool ended = false;
  };
  static void run(State& state);

  std::shared_ptr<State> state_ = std::make_shared<State>();
  sys::Thread thread_;
};

}  // namespace lockstep::sys
