// Watcher: one thread a process that sleeps until a peer's process ends, and then says so, within
// milliseconds and also while nobody waits.
#pragma once

#include "comm/shm/peers.h"
#include "sys/file_descriptor.h"

#include <functional>
#include <thread>

namespace lockstep::shm {

class Watcher {
 public:
  // Calls on_end(rank) once for each peer that ends or closes its socket, from its own thread.
  // `peers` outlives it.
  Watcher(const Peers& peers, std::function<void(int)> on_end);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void run(const Peers& peers);

  std::function<void(int)> on_end_;
  sys::FileDescriptor stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace lockstep::shm
