// Hand-over: how the ranks of one host get each other's arenas.
//
// Each rank listens on an abstract unix socket and publishes its random name and a random token in
// the store, connects to all lower ranks and accepts all higher ones. Over every connection the
// side that connects sends a greeting with the other's token and its arena's descriptor, then the
// other side does; both check user, version, world size and rank. A process without the token is
// dropped, and neither ends nor delays the joining. The connection stays open: its end is the
// peer's end.
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
  std::uint64_t world_block = 0;  // where rank 0 has put the world's block, in its arena
};

// `prefix` of the keys; `world_block` counts on rank 0 only. Blocks until all ranks have come.
// Timeout names those that did not; PeerLost one that ended meanwhile; BadInput a difference of
// versions or world sizes.
[[nodiscard]] HandOver hand_over(Store& store, const std::string& prefix, int rank, int size,
                                 std::shared_ptr<Arena> arena, std::uint64_t world_block,
                                 Deadline deadline);

}  // namespace lockstep::shm
