// Arena exchange: how the ranks of one host exchange their arenas.
//
// Each rank listens on an abstract unix socket and publishes the socket's random name and a random
// token in the store. It connects to all lower ranks and accepts all higher ranks. Over each
// connection, the connecting side first sends a greeting with the other side's token and the
// descriptor of its own arena; then the other side does the same. Both check user, version, world
// size and rank. Connections of processes without the token are closed and delay no rank. The
// connection between two ranks stays open: when it closes, the peer has ended.
#pragma once

#include "comm/backends/shm/arena.h"
#include "comm/backends/shm/peers.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep::shm {

struct ExchangedArenas {
  PeerMappings peers;
  std::uint64_t world_block = 0;  // offset of the world's block in rank 0's arena
};

// `prefix` is the prefix of the keys; `world_block` is used on rank 0 only. Blocks until all ranks
// have joined. Throws Timeout, which names the missing ranks; PeerLost, which names a rank that
// ended; BadInput if versions or world sizes differ.
[[nodiscard]] ExchangedArenas exchange_arenas(Store& store, const std::string& prefix, int rank,
                                              int size, std::shared_ptr<Arena> arena,
                                              std::uint64_t world_block, Deadline deadline);

}  // namespace lockstep::shm
