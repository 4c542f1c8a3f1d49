// Nudges: how a process asks others to carry out small operations that they have posted, when it
// waits for that and they do not look. Their watchers do it.
#include "comm/engines/shm/endpoint.h"
#include "comm/engines/shm/watcher.h"

#include <atomic>
#include <mutex>

namespace lockstep::shm {

std::vector<int> Endpoint::urge_late(const Channel& channel) {
  std::vector<int> late;
  {
    std::lock_guard lock(mutex_);
    late = channel.late_for_barrier();
  }
  nudge_members(channel, late);
  return late;
}

void Endpoint::nudge_members(const Channel& channel, std::span<const int> members) {
  for (int member : members) {
    int rank = channel.group().members()[member];
    if (rank != peers().rank()) nudge(peers().peer(rank));
  }
}

// A peer waits for this process to read what it has carried.
void Endpoint::on_nudge(int rank) {
  (void)try_progress(ProgressScope::carried);
  // Whichever thread carried them out has said so without one (Channel::complete, waiting.h).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring(std::span(&rank, 1), false);
}

}  // namespace lockstep::shm
