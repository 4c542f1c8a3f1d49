// The store of a run without our launcher: rank 0 serves it.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>
#include <lockstep/store/store_server.h>

#include "rank_env/rank_info.h"

#include <memory>

namespace lockstep::rendezvous {

// For a rendezvous of kind served_store. Rank 0 serves the store while it holds a pointer from this
// function; the other ranks wait for it until the deadline. Over TCP, the secret is that of
// LOCKSTEP_SECRET_FILE, else the user's own (user_secret()); on one host, the kernel authenticates
// the peer. Throws as open_run_store().
[[nodiscard]] std::shared_ptr<Store> open_served_store(const rank_env::RankInfo& info,
                                                       Deadline deadline);

// Returns `store` with shared ownership of the server: the server lives as long as the result.
[[nodiscard]] std::shared_ptr<Store> keep_serving(std::shared_ptr<StoreServer> server,
                                                  std::shared_ptr<Store> store);

}  // namespace lockstep::rendezvous
