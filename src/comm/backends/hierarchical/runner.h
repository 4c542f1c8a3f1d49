// The backend "hierarchical": shared memory inside each host, another backend across hosts. Its
// groups consist of groups of those two backends; an error in one of these groups ends the whole
// group. A subgroup of ranks of a single host is a group of the inner backend.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include "comm/backend/options.h"

#include <functional>
#include <memory>
#include <span>

namespace lockstep::hierarchical {

// Makes a backend for these world ranks, which share `store`; this rank is number `place` of them.
using MakeBackend = std::function<std::shared_ptr<Backend>(std::shared_ptr<Store> store, int place,
                                                           std::span<const int> ranks)>;

// Calls `inside` for the ranks of this host and `across` for all ranks. Blocks until all have
// joined.
[[nodiscard]] std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank,
                                            const BackendOptions& options,
                                            const MakeBackend& inside, const MakeBackend& across);

}  // namespace lockstep::hierarchical
