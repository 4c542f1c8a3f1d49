// Execution marks: what the threads of each process say they are executing, in places of its
// control page that all ranks read.
//
// Invariant: a thread marks an operation before it asks whether its group has failed, and touches
// buffers only if not; both accesses are sequentially consistent, and so are a failure and the look
// at the marks that follows it. So a process that sees no mark of a failed group knows that nobody
// touches its buffers any more.
#pragma once

#include "comm/engines/shm/control.h"
#include "comm/engines/shm/peers.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

namespace lockstep::shm {

class ExecutionMarks {
 public:
  explicit ExecutionMarks(const Peers& peers) : own_(peers.arena()->control().executing) {}

  // A place of this process that is free; nothing when as many threads execute as there are places.
  // It stays free until set(). Under a mutex, both.
  [[nodiscard]] std::optional<std::size_t> free_place() const {
    auto free = std::find_if(own_.begin(), own_.end(), [](const auto& place) {
      return place.load(std::memory_order_acquire) == 0;
    });
    if (free == own_.end()) return std::nullopt;
    return static_cast<std::size_t>(free - own_.begin());
  }
  void set(std::size_t place, std::uint64_t word) {
    own_[place].store(word, std::memory_order_seq_cst);
  }
  void clear(std::size_t place) { own_[place].store(0, std::memory_order_release); }

 private:
  decltype(Control::executing)& own_;
};

// Calls visit(word) for each mark of a process.
template <typename Visit>
void visit_marks(const Peers& peers, int world_rank, Visit&& visit) {
  for (const auto& place : peers.control(world_rank).executing) {
    if (auto word = place.load(std::memory_order_seq_cst); word != 0) visit(word);
  }
}

}  // namespace lockstep::shm
