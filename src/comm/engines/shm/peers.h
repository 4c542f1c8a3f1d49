// Peers: the arenas of all ranks of the host as this process maps them. Fixed once the hand-over is
// done.
#pragma once

#include "comm/engines/shm/arena.h"
#include "comm/engines/shm/location.h"
#include "sys/file_descriptor.h"
#include "sys/shared_memory.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <sys/types.h>

namespace lockstep::shm {

struct Peer {
  pid_t pid = 0;                              // 0 when this process cannot see it
  sys::FileDescriptor process;                // pidfd, when the pid is visible
  sys::FileDescriptor socket;                 // the hand-over's; closed by the peer's end
  std::shared_ptr<sys::SharedMemory> memory;  // null for this rank itself
};

class Peers {
 public:
  Peers(int rank, std::shared_ptr<Arena> arena, std::vector<Peer> peers);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }
  [[nodiscard]] const std::shared_ptr<Arena>& arena() const { return arena_; }
  [[nodiscard]] const Peer& peer(int rank) const { return peers_[rank]; }

  [[nodiscard]] std::byte* base(int rank) const { return bases_[rank]; }
  // What keeps that rank's arena mapped here.
  [[nodiscard]] std::shared_ptr<const void> mapping(int rank) const {
    if (rank == rank_) return arena_;
    return peers_[rank].memory;
  }
  [[nodiscard]] Control& control(int rank) const { return *reinterpret_cast<Control*>(base(rank)); }
  // The address of a location in this process; null for nowhere.
  [[nodiscard]] std::byte* address(Location location) const {
    return location.is_somewhere() ? base(location.rank) + location.offset : nullptr;
  }
  // Wakes what sleeps in those processes (waiting.h): threads that wait, and with `helpers` those
  // that help, too.
  void ring(std::span<const int> ranks, bool helpers = true) const;
  // Of a buffer that lies in an arena as a whole; nowhere for any other.
  [[nodiscard]] Location locate(const std::byte* data, std::size_t bytes) const;

 private:
  int rank_;
  std::shared_ptr<Arena> arena_;
  std::vector<Peer> peers_;
  std::vector<std::byte*> bases_;
};

}  // namespace lockstep::shm
