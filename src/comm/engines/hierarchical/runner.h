// The engine "hierarchical": shared memory inside each host, another engine across. Its groups are
// made of groups of those two; an error in one of them ends the whole. One of ranks of a single
// host is a group of the engine inside.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::hierarchical {

struct Options {
  Duration join_timeout = std::chrono::minutes(5);
  std::vector<std::string> hosts;  // of each rank
};

// Makes a backend of an engine for these ranks of the world, which share `store`; this one is
// number `place` of them.
using MakeEngine = std::function<std::shared_ptr<Backend>(std::shared_ptr<Store> store, int place,
                                                          std::span<const int> ranks)>;

// `inside` is called for the ranks of this host, `across` for all. Blocks until all have come.
[[nodiscard]] std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank,
                                            const Options& options, const MakeEngine& inside,
                                            const MakeEngine& across);

}  // namespace lockstep::hierarchical
