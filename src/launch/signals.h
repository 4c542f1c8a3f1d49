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

// SIGPIPE is an error of write() while the object lives.
class IgnoredBrokenPipes {
 public:
  IgnoredBrokenPipes();
  ~IgnoredBrokenPipes();
  IgnoredBrokenPipes(const IgnoredBrokenPipes&) = delete;
  IgnoredBrokenPipes& operator=(const IgnoredBrokenPipes&) = delete;

 private:
  struct sigaction before_;
};

}  // namespace lockstep::launch
