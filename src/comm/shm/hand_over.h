// Hand-over: how the ranks of one host get each other's arenas.
//
// Each rank listens on an abstract unix socket whose random name it publishes in the store,
// connects to all lower ranks and accepts all higher ones. Over every connection both sides send
// one greeting with their arena's descriptor, and check the other's user, version, world size and
// rank. The connection stays open: its end is the peer's end.
#pragma once

#include "comm/shm/arena.h"
#include "comm/shm/peers.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep::shm {

struct HandOver {
  Peers peers;
  std::uint64_t world_block = 0;  // where rank 0 has put the world's block, in its arena
};

// `prefix` of the keys; `world_block` counts on rank 0 only. Blocks until all ranks have come.
// Timeout names those that did not; PeerLost one that ended meanwhile; BadInput a difference of
// versions or world sizes.
[[nodiscard]] HandOver hand_over(Store& store, const std::string& prefix, int rank, int size,
                                 std::shared_ptr<Arena> arena, std::uint64_t world_block,
                                 Deadline deadline);

}  // namespace lockstep::shm
