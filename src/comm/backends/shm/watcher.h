// Watcher: one thread per process that sleeps until a peer's process ends, and then reports that
// within milliseconds, also while no thread waits. Peers can also nudge it if they need something
// that only this process can do.
#pragma once

#include "comm/backends/shm/peers.h"
#include "sys/file_descriptor.h"
#include "sys/thread.h"

#include <functional>

namespace lockstep::shm {

class Watcher {
 public:
  // On its own thread, calls on_end(rank) once for each peer that ends or closes its socket, and
  // on_nudge(rank) after a nudge() of that peer. `peers` must outlive it.
  Watcher(const PeerMappings& peers, std::function<void(int)> on_end,
          std::function<void(int)> on_nudge);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void run(const PeerMappings& peers);

  std::function<void(int)> on_end_;
  std::function<void(int)> on_nudge_;
  sys::FileDescriptor stop_;  // an eventfd
  sys::Thread thread_;
};

// Wakes a peer's watcher. Never blocks; several nudges may be merged into one.
void nudge(const Peer& peer);

}  // namespace lockstep::shm
