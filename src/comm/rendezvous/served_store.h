// The store of a run that has no launcher of ours: rank 0 serves it.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>
#include <lockstep/store/store_server.h>

#include "rank_env/rank_info.h"

#include <memory>

namespace lockstep::rendezvous {

// For a rendezvous of kind served_store. Rank 0 serves for as long as it holds a store that came
// from here; the others wait for it until the deadline. Over TCP the secret is that of
// LOCKSTEP_SECRET_FILE, else the user's own (user_secret()); on one host the kernel says who the
// peer is. Errors as open_run_store().
[[nodiscard]] std::shared_ptr<Store> open_served_store(const rank_env::RankInfo& info,
                                                       Deadline deadline);

// `store` as its owner's: the server lives as long as it does.
[[nodiscard]] std::shared_ptr<Store> keep_serving(std::shared_ptr<StoreServer> server,
                                                  std::shared_ptr<Store> store);

}  // namespace lockstep::rendezvous
