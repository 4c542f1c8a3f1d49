// A thread of the library's own: no signal is delivered to it, because signals are the program's,
// and its copy in a forked child, where no such thread runs, is neither joined nor missed.
#pragma once

#include "sys/own_process.h"

#include <lockstep/base/deadline.h>

#include <exception>
#include <functional>
#include <thread>

namespace lockstep::sys {

class Thread {
 public:
  Thread() = default;
  // `name` shows in debuggers and in /proc: 15 letters at most. `body` must not throw.
  // SystemError when the system starts no more threads.
  Thread(const char* name, std::function<void()> body);
  Thread(Thread&& other) noexcept = default;
  // Only when there is no thread here that has not been joined.
  Thread& operator=(Thread&& other) noexcept = default;
  // One that is neither joined nor detached ends the program, as with std::thread.
  ~Thread();

  [[nodiscard]] bool joinable() const { return thread_.joinable(); }
  // Nothing in a forked child.
  void join();
  void detach();

 private:
  OwnProcess process_;
  std::thread thread_;
};

// Runs `action` on such a thread and waits for it, so that the threads that a foreign library
// starts meanwhile leave signals alone too, while this one can still be interrupted. Throws what
// `action` throws.
void run_without_signals(const std::function<void()>& action);

// Work that may take longer than anybody can wait, such as asking a store whose server is stopped.

// Runs `action`, which must not throw, on a thread of its own and returns true when it has ended
// within `limit`. Otherwise the thread is left to itself: `action` must own what it uses.
[[nodiscard]] bool run_with_timeout(std::function<void()> action, Duration limit);

}  // namespace lockstep::sys
