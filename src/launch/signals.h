// Signals as something to poll for, instead of something that interrupts.
#pragma once

#include "sys/file_descriptor.h"

#include <csignal>
#include <vector>

namespace lockstep::launch {

// Blocks the signals an agent passes on, in the calling thread, until destroyed; threads started
// meanwhile inherit that. SIGHUP stays ignored where it was (nohup). SIGINT does not: scripts start
// background jobs so, and may still want to stop them.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_.get(); }
  // Those that have come, in the order of their numbers; never blocks.
  [[nodiscard]] std::vector<int> take();

 private:
  sigset_t before_;
  sys::FileDescriptor descriptor_;
};

// While the object lives, a reader that has gone and a file that may not grow further are errors of
// write(), not signals; and children that end can be waited for, also where the process has
// inherited an ignored SIGCHLD.
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
