// The store through which the ranks of a run meet.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "rank_env/rank_info.h"

#include <memory>

namespace lockstep {

// Serves or connects to the store; waits for its server. Throws Timeout if no server answers,
// BadInput if the port is in use or the secret is wrong.
[[nodiscard]] std::shared_ptr<Store> open_run_store(const rank_env::RankInfo& info,
                                                    Deadline deadline);

}  // namespace lockstep
