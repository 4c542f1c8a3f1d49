// Signals as a descriptor to poll instead of interrupting handlers.
#pragma once

#include "sys/file_descriptor.h"

#include <csignal>
#include <vector>

namespace lockstep::launch {

// Blocks the signals that an agent forwards, in the calling thread, until destroyed; threads that
// are started meanwhile inherit the mask. If SIGHUP was ignored (nohup), it stays ignored. SIGINT
// does not: scripts start background jobs with SIGINT ignored and may still want to interrupt them.
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

}  // namespace lockstep::launch
