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

  // Of this process: it posts nothing more, in no group; then: it carries nothing out any more
  // either. Peers are woken.
  void begin_to_leave() { say(Control::leaving); }
  void leave() { say(Control::gone); }
  // The process of a world rank ended without leaving.
  void note_end(int rank) { ended_[rank].store(true, std::memory_order_seq_cst); }

  // A world rank posts nothing more, since it leaves or has left in order.
  [[nodiscard]] bool has_departed(int rank) const { return state(rank) != Control::present; }
  // It has left in order: it carries nothing out any more.
  [[nodiscard]] bool has_gone(int rank) const { return state(rank) == Control::gone; }
  [[nodiscard]] bool has_ended(int rank) const {
    return ended_[rank].load(std::memory_order_seq_cst);
  }
  // It may still execute something, as far as is known.
  [[nodiscard]] bool is_alive(int rank) const { return !has_gone(rank) && !has_ended(rank); }

 private:
  [[nodiscard]] std::uint32_t state(int rank) const {
    return peers_.control(rank).left.load(std::memory_order_seq_cst);
  }
  void say(std::uint32_t state) {
    peers_.arena()->control().left.store(state, std::memory_order_seq_cst);
    peers_.ring(all_ranks(peers_.size()));
  }

  const Peers& peers_;
  const std::unique_ptr<std::atomic<bool>[]> ended_;  // by world rank
};

}  // namespace lockstep::shm
