// Nudges: how a process asks others to carry out small operations that they have posted, when it
// waits for that and they do not look. Their watchers do it.
#include "comm/engines/shm/endpoint.h"
#include "comm/engines/shm/watcher.h"

#include <atomic>
#include <mutex>

namespace lockstep::shm {

std::vector<int> Endpoint::urge_late(const Lane& lane) {
  std::vector<int> late;
  {
    std::lock_guard lock(mutex_);
    late = lane.late_for_barrier();
  }
  nudge_members(lane, late);
  return late;
}

void Endpoint::nudge_members(const Lane& lane, std::span<const int> members) {
  for (int member : members) {
    int rank = lane.group().members()[member];
    if (rank != peers().rank()) nudge(peers().peer(rank));
  }
}

// A peer waits for this process to read what it has carried.
void Endpoint::on_nudge(int rank) {
  (void)try_progress(Appetite::carried);
  // Whichever thread carried them out has said so without one (Lane::complete, waiting.h).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring(std::span(&rank, 1), false);
}

}  // namespace lockstep::shm
