#include "comm/engines/shm/peers.h"

#include "comm/engines/shm/private_memory.h"
#include "comm/engines/shm/waiting.h"

#include <unistd.h>

namespace lockstep::shm {

Peers::Peers(int rank, std::shared_ptr<Arena> arena, std::vector<Peer> peers)
    : rank_(rank), arena_(std::move(arena)), peers_(std::move(peers)) {
  for (int peer = 0; peer < size(); ++peer) {
    bool is_here = peer == rank_ || peers_[peer].pid == getpid();
    bases_.push_back(peer == rank_ ? arena_->data() : peers_[peer].memory->data());
    processes_.push_back(is_here ? 0 : peers_[peer].pid);
  }
}

bool Peers::can_reach(int rank) const {
  if (processes_[rank] == 0) return rank == rank_ || peers_[rank].pid > 0;
  if (!peers_[rank].process) return false;  // nothing would say when the number is another's
  std::uint64_t identity = 0;
  auto address = peers_[rank].control_address + offsetof(Control, identity);
  Place place{reinterpret_cast<std::byte*>(address), processes_[rank], peers_[rank].process.get()};
  int error = read_private(reinterpret_cast<std::byte*>(&identity), place, sizeof identity);
  return error == 0 && identity == control(rank).identity.load(std::memory_order_relaxed);
}

bool Peers::share_private_memory() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (control(rank).reaches_peers.load(std::memory_order_acquire) != Control::yes) return false;
  }
  return true;
}

void Peers::ring(std::span<const int> ranks, bool helpers) const {
  for (int rank : ranks) {
    shm::ring(control(rank).waiting);
    if (helpers) shm::ring(control(rank).helper);
  }
}

Location Peers::locate(const std::byte* data, std::size_t bytes) const {
  if (arena_->contains(data, bytes))
    return {rank_, static_cast<std::uint64_t>(data - arena_->data())};
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    const auto& memory = *peers_[rank].memory;
    if (data >= memory.data() && data + bytes <= memory.data() + memory.bytes())
      return {rank, static_cast<std::uint64_t>(data - memory.data())};
  }
  return {};
}

}  // namespace lockstep::shm
