// The store through which the ranks of a run find one another.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "rank_env/rank_info.h"

#include <memory>

namespace lockstep {

// Opens it, or connects to it: waits for its server. Timeout when nobody answers, BadInput when the
// port is in use or the secret is wrong.
[[nodiscard]] std::shared_ptr<Store> open_run_store(const rank_env::RankInfo& info,
                                                    Deadline deadline);

}  // namespace lockstep
