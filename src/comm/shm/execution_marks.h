// Execution marks: what the threads of each process say they are executing, in places of its
// control page that all ranks read.
//
// Invariant: a thread marks an operation before it asks whether its group has failed, and touches
// buffers only if not; both accesses are sequentially consistent, and so are a failure and the look
// at the marks that follows it. So a process that sees no mark of a failed group knows that nobody
// touches its buffers any more.
#pragma once

#include "comm/shm/control.h"
#include "comm/shm/peers.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

namespace lockstep::shm {

class ExecutionMarks {
 public:
  explicit ExecutionMarks(const Peers& peers) : peers_(peers) {}

  // A place of this process that is free; nothing when as many threads execute as there are places.
  // It stays free until set(). Under a mutex, both.
  [[nodiscard]] std::optional<std::size_t> free_place() const {
    const auto& places = own();
    auto free = std::find_if(places.begin(), places.end(), [](const auto& place) {
      return place.load(std::memory_order_acquire) == 0;
    });
    if (free == places.end()) return std::nullopt;
    return static_cast<std::size_t>(free - places.begin());
  }
  void set(std::size_t place, std::uint64_t word) {
    own()[place].store(word, std::memory_order_seq_cst);
  }
  void clear(std::size_t place) { own()[place].store(0, std::memory_order_release); }

  // Calls visit(word) for each mark of a process.
  template <typename Visit>
  void visit(int world_rank, Visit&& visit) const {
    for (const auto& place : peers_.control(world_rank).executing) {
      if (auto word = place.load(std::memory_order_seq_cst); word != 0) visit(word);
    }
  }

 private:
  using Places = decltype(Control::executing);
  [[nodiscard]] Places& own() const { return peers_.arena()->control().executing; }

  const Peers& peers_;
};

}  // namespace lockstep::shm
