// What an agent says while it waits for the agents of other nodes, which may take minutes.
#pragma once

#include "base/mutex.h"
#include "launch/signals.h"
#include "sys/file_descriptor.h"
#include "sys/thread.h"

#include <functional>
#include <optional>
#include <string>

namespace lockstep::launch {

// From a thread of its own: a line after a second, then one every ten, and one when a signal comes
// that asks for the end.
class WaitingLines {
 public:
  // `say` is called from that thread. With `signals`, those of SignalQueue are held back in the
  // calling thread for as long as this lives, and have their ordinary effect after the line.
  WaitingLines(std::function<void(const std::string&)> say, bool signals);
  ~WaitingLines();
  WaitingLines(const WaitingLines&) = delete;
  WaitingLines& operator=(const WaitingLines&) = delete;

  // What is waited for from now on: "node 0 at host-a:29400".
  void wait_for(std::string what);

 private:
  void run();
  void take_signals();
  [[nodiscard]] std::string what() const;

  std::function<void(const std::string&)> say_;
  std::optional<SignalQueue> signals_;
  sys::FileDescriptor end_;
  mutable Mutex mutex_;
  std::string what_ LOCKSTEP_GUARDED_BY(mutex_);
  sys::Thread thread_;
};

}  // namespace lockstep::launch
