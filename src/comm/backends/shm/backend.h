// ShmBackend: turns a Call on tensors into a posting on addresses, and
// keeps the tensors until the backend reports that no peer will touch them again.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include "comm/backend/options.h"

#include <memory>
#include <string_view>

namespace lockstep::shm {

// Makes the world of `size` ranks of this host, numbered 0..size-1. Every rank calls it with a
// client of the same store (keys are under "shm/"; several rounds on one store are kept apart).
// Blocks until all ranks have joined. The backends made from it share its resources; when the last
// backend is destroyed, this rank leaves. Throws Timeout, which names the ranks that never joined;
// BadInput if world sizes or versions differ, or the arena is larger than the free memory.
[[nodiscard]] std::shared_ptr<Backend> make(std::string_view name, std::shared_ptr<Store> store,
                                            int rank, int size, const BackendOptions& options);

}  // namespace lockstep::shm
