// Hand-over: how the ranks of one host exchange their arenas.
//
// Each rank listens on an abstract unix socket and publishes its random name and a random token in
// the store, connects to all lower ranks and accepts all higher ones. Over every connection, the
// connecting side first sends a greeting with the other's token and its arena's descriptor, then
// the other side does the same; both check user, version, world size and rank. A process without
// the token is dropped and neither ends nor delays the joining. The connection stays open: when it
// closes, the peer has ended.
#pragma once

#include "comm/engines/shm/arena.h"
#include "comm/engines/shm/peers.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep::shm {

struct HandOver {
  Peers peers;
  std::uint64_t world_block = 0;  // offset of the world's block in rank 0's arena
};

// `prefix` is the prefix of the keys; `world_block` is used on rank 0 only. Blocks until all ranks
// have joined. Throws Timeout, which names the missing ranks; PeerLost, which names one that ended
// meanwhile; BadInput if versions or world sizes differ.
[[nodiscard]] HandOver hand_over(Store& store, const std::string& prefix, int rank, int size,
                                 std::shared_ptr<Arena> arena, std::uint64_t world_block,
                                 Deadline deadline);

}  // namespace lockstep::shm
