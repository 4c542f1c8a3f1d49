// ShmBackend: turns a Call on tensors into a posting on addresses, and
// keeps the tensors until the backend reports that no peer will touch them again.
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
  Duration timeout = std::chrono::minutes(10);  // of a wait without a call: a full ring, subset()
  Duration join_timeout = std::chrono::minutes(5);  // time limit for every rank to join
  std::int64_t arena_bytes = 0;  // 0: LOCKSTEP_ARENA, else a share of the host's memory
  // If true, this process's CPU tensors are made in the arena (tensor_allocator.h) while a backend
  // of this world exists, in addition to arena_bytes. If unset, LOCKSTEP_ARENA_TENSORS decides; its
  // default is true, except in builds with a sanitizer.
  std::optional<bool> has_tensors = {};
  std::vector<int> world_ranks = {};  // if these ranks are not the whole world
};

// Makes the world of `size` ranks of this host, numbered 0..size-1. Every rank calls it with a
// client of the same store (keys are under "shm/"; several rounds on one store are kept apart).
// Blocks until all ranks have joined. The backends made from it share its resources; when the last
// backend is destroyed, this rank leaves. Throws Timeout, which names the ranks that never joined;
// BadInput if world sizes or versions differ, or the arena is larger than the free memory.
[[nodiscard]] std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank, int size,
                                            BackendOptions options = {});

}  // namespace lockstep::shm
