// Presence: what has become of the process of each rank of the host. One that leaves in order says
// so in its control page; of one that ends otherwise the watcher (watcher.h) learns.
#pragma once

#include "comm/call/all_ranks.h"
#include "comm/engines/shm/peers.h"

#include <atomic>
#include <memory>

namespace lockstep::shm {

class Presence {
 public:
  explicit Presence(const Peers& peers)
      : peers_(peers), ended_(std::make_unique<std::atomic<bool>[]>(peers.size())) {}

  // This process posts and executes nothing more, in any group. Wakes the peers.
  void leave() {
    peers_.arena()->control().has_left.store(1, std::memory_order_seq_cst);
    peers_.ring(all_ranks(peers_.size()));
  }
  // The process of a world rank ended without leaving.
  void note_end(int rank) { ended_[rank].store(true, std::memory_order_seq_cst); }

  // A world rank has left in order.
  [[nodiscard]] bool has_left(int rank) const {
    return peers_.control(rank).has_left.load(std::memory_order_seq_cst) != 0;
  }
  [[nodiscard]] bool has_ended(int rank) const {
    return ended_[rank].load(std::memory_order_seq_cst);
  }
  // It may still execute something, as far as is known.
  [[nodiscard]] bool is_alive(int rank) const { return !has_left(rank) && !has_ended(rank); }

 private:
  const Peers& peers_;
  const std::unique_ptr<std::atomic<bool>[]> ended_;  // by world rank
};

}  // namespace lockstep::shm
