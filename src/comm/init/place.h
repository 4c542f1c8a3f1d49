// init() at a place that the caller knows, in a process whose environment may say another one: what
// the rounds of an elastic run need (src/elastic).
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/store/store.h>

#include "rank_env/rank_info.h"

#include <functional>
#include <memory>

namespace lockstep {

// What stands between the ranks and the run's store; empty: nothing.
using StoreFilter = std::function<std::shared_ptr<Store>(std::shared_ptr<Store>)>;

// Collective among the ranks that have the same `info.attempt`. As init(), which calls it with the
// place of the environment.
[[nodiscard]] Group init_at(const rank_env::RankInfo& info, const InitOptions& options,
                            const StoreFilter& filter = {});

}  // namespace lockstep
