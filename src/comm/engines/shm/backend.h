// The LibTorch face of the shared-memory engine: turns a Call on tensors into a posting on
// addresses, and keeps the tensors until the engine says that no peer will touch them again.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace lockstep::shm {

struct BackendOptions {
  Duration timeout =
      std::chrono::minutes(10);  // of a wait that has no call of its own: a full ring, subset()
  Duration join_timeout = std::chrono::minutes(5);  // until every rank must have arrived
  std::int64_t arena_bytes = 0;  // 0: LOCKSTEP_ARENA, else a share of the machine's memory
  // This process's CPU tensors are made in the arena (tensor_allocator.h) as long as a backend of
  // this world lives, beside the bytes that are for everything else. Unset:
  // LOCKSTEP_ARENA_TENSORS, else they are, but in a build with a sanitizer.
  std::optional<bool> has_tensors = {};
  std::vector<int> world_ranks = {};  // where these ranks are a part of the world
};

// The world of `size` ranks of this host, numbered 0..size-1. Every rank calls it with a client of
// the same store (keys lie under "shm/"; several rounds on one store are told apart). Blocks until
// all have arrived. The backends made from it share what was opened; when the last one goes, this
// rank leaves in order.
// Timeout names the ranks that never came; BadInput: world sizes or versions differ, or the arena
// is more than is free.
[[nodiscard]] std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank, int size,
                                            BackendOptions options = {});

}  // namespace lockstep::shm
