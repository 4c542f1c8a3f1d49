// Peers: the arenas of all ranks of the host as this process maps them. Fixed once the hand-over is
// done.
#pragma once

#include "comm/shm/arena.h"
#include "comm/shm/location.h"
#include "sys/file_descriptor.h"
#include "sys/shared_memory.h"

#include <cstddef>
#include <memory>
#include <vector>

#include <sys/types.h>

namespace lockstep::shm {

struct Peer {
  pid_t pid = 0;                // 0 when this process cannot see it
  sys::FileDescriptor process;  // pidfd, when the pid is visible
  sys::FileDescriptor socket;   // the hand-over's; closed by the peer's end
  sys::SharedMemory memory;     // empty for this rank itself
};

class Peers {
 public:
  Peers(int rank, std::shared_ptr<Arena> arena, std::vector<Peer> peers)
      : rank_(rank), arena_(std::move(arena)), peers_(std::move(peers)) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }
  [[nodiscard]] const std::shared_ptr<Arena>& arena() const { return arena_; }
  [[nodiscard]] const Peer& peer(int rank) const { return peers_[rank]; }

  [[nodiscard]] std::byte* base(int rank) const {
    return rank == rank_ ? arena_->data() : peers_[rank].memory.data();
  }
  [[nodiscard]] Control& control(int rank) const { return *reinterpret_cast<Control*>(base(rank)); }
  // Where a location is in this process; null for nowhere.
  [[nodiscard]] std::byte* address(Location location) const {
    return location.is_somewhere() ? base(location.arena) + location.offset : nullptr;
  }
  // Of a buffer that lies in an arena as a whole; nowhere for any other.
  [[nodiscard]] Location locate(const std::byte* data, std::size_t bytes) const {
    if (arena_->contains(data, bytes))
      return {rank_, static_cast<std::uint64_t>(data - arena_->data())};
    for (int rank = 0; rank < size(); ++rank) {
      const auto& memory = peers_[rank].memory;
      if (memory.data() && data >= memory.data() &&
          data + bytes <= memory.data() + memory.bytes()) {
        return {rank, static_cast<std::uint64_t>(data - memory.data())};
      }
    }
    return {};
  }

 private:
  int rank_;
  std::shared_ptr<Arena> arena_;
  std::vector<Peer> peers_;
};

}  // namespace lockstep::shm
