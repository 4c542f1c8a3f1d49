// Signals as a descriptor to poll instead of interrupting handlers, and poll() itself.
#pragma once

#include "sys/file_descriptor.h"

#include <lockstep/base/deadline.h>

#include <poll.h>

#include <csignal>
#include <functional>
#include <utility>
#include <vector>

namespace lockstep::launch {

// Returns true for signals that ask a program to end. SIGPIPE: the reader of its output has gone.
[[nodiscard]] inline bool asks_to_stop(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT ||
         signal == SIGPIPE;
}

// Blocks the signals that an agent forwards in the calling thread during the object's lifetime;
// threads that are started meanwhile inherit the mask. If SIGHUP was ignored (nohup), it stays
// ignored; SIGINT does not, because scripts start background jobs with SIGINT ignored and may still
// want to interrupt them.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_.get(); }
  // Returns the pending signals in the order of their numbers; never blocks.
  [[nodiscard]] std::vector<int> take();

 private:
  sigset_t before_;
  sys::FileDescriptor descriptor_;
};

// During the object's lifetime, SIGPIPE and SIGXFSZ are ignored, so that write() returns an error
// instead. An inherited ignored SIGCHLD gets its default action, so that children can be waited
// for.
class SignalActions {
 public:
  SignalActions();
  ~SignalActions();
  SignalActions(const SignalActions&) = delete;
  SignalActions& operator=(const SignalActions&) = delete;

 private:
  struct sigaction broken_pipe_, file_size_, child_;
};

// poll() with an action per descriptor. Make a new one for each wait, so that the watched
// descriptors are easy to see.
class Poller {
 public:
  // Negative descriptors are ignored.
  void watch(int descriptor, short events, std::function<void()> action) {
    if (descriptor < 0) return;
    entries_.push_back({descriptor, events, 0});
    actions_.push_back(std::move(action));
  }

  // Blocks until a descriptor is ready or the deadline passes, then runs the actions of the ready
  // descriptors in the order of watch().
  void wait(Deadline deadline) {
    if (::poll(entries_.data(), entries_.size(), deadline.poll_milliseconds()) <= 0) return;
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (entries_[i].revents != 0) actions_[i]();
  }

 private:
  std::vector<pollfd> entries_;
  std::vector<std::function<void()>> actions_;
};

}  // namespace lockstep::launch
