#include "comm/engines/shm/peers.h"

namespace lockstep::shm {

Peers::Peers(int rank, std::shared_ptr<Arena> arena, std::vector<Peer> peers)
    : rank_(rank), arena_(std::move(arena)), peers_(std::move(peers)) {
  for (int peer = 0; peer < size(); ++peer)
    bases_.push_back(peer == rank_ ? arena_->data() : peers_[peer].memory->data());
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
