// init() with a rank and world that the caller knows, in a process whose environment may say
// otherwise: for the rounds of an elastic run (src/elastic).
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/store/store.h>

#include "rank_env/rank_info.h"

#include <functional>
#include <memory>

namespace lockstep {

// Wraps the run's store for the ranks; empty: no wrapper.
using StoreFilter = std::function<std::shared_ptr<Store>(std::shared_ptr<Store>)>;

// Collective over the ranks with the same `info.attempt`. Behaves as init(), which calls it with
// the values of the environment.
[[nodiscard]] Group init_at(const rank_env::RankInfo& info, const InitOptions& options,
                            const StoreFilter& filter = {});

}  // namespace lockstep
