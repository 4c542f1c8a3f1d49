// Peers: the arenas of all ranks of the host as this process maps them. Fixed once the hand-over is
// done.
#pragma once

#include "comm/engines/shm/arena.h"
#include "comm/engines/shm/location.h"
#include "comm/engines/shm/place.h"
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
  std::uint64_t control_address = 0;          // of its control page in its own process
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
  // Where a location is for this process.
  [[nodiscard]] Place place(Location location) const {
    if (!location.is_somewhere()) return {};
    if (!location.is_private) return Place::here(base(location.rank) + location.offset);
    auto* address = reinterpret_cast<std::byte*>(location.offset);
    if (processes_[location.rank] == 0) return Place::here(address);
    return {address, processes_[location.rank], peers_[location.rank].process.get()};
  }
  // The address of what lies in an arena.
  [[nodiscard]] std::byte* address(Location location) const { return place(location).data; }
  // Of a buffer in this rank's private memory.
  [[nodiscard]] Location locate_private(const std::byte* data) const {
    return {rank_, reinterpret_cast<std::uint64_t>(data), true};
  }
  // The process to name to the kernel for that rank's private memory; 0 when it is this one.
  [[nodiscard]] pid_t process(int rank) const { return processes_[rank]; }
  // Tries whether that memory can be read. True for ranks of this process.
  [[nodiscard]] bool can_reach(int rank) const;
  // Whether all ranks have tried that and found it possible and useful.
  [[nodiscard]] bool share_private_memory() const;
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
  std::vector<pid_t> processes_;
};

}  // namespace lockstep::shm
