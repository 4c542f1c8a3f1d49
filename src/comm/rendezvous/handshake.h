// Handshake: every rank tells the others its world size, its host, the requested engine and the
// devices that it may use, and each rank compares them.
//
// Keys, under "lockstep/<attempt>/": "round/<rank>" counts the calls of init() of one rank, so that
// the n-th calls of all ranks meet; "<n>/hello/<rank>" holds five lines of that rank: world size,
// version, engine, host, and the names of its devices, separated by spaces; "<n>/refused/<rank>"
// says that the rank ends because another rank's lines do not fit.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "rank_env/rank_info.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rendezvous {

struct WorldInfo {
  std::shared_ptr<Store> store;    // the part of the store that belongs to these ranks
  std::vector<std::string> hosts;  // of each rank
  std::vector<std::vector<std::string>> devices;  // names of those that each rank may use
  int local_size = 1;                             // ranks on this rank's host

  [[nodiscard]] bool is_one_host() const { return local_size == static_cast<int>(hosts.size()); }
};

// Blocks until all have come. `engine` is what this rank was asked for, or ""; `devices` names the
// devices that it may use. BadInput when two ranks were told different things; Timeout names those
// that did not come.
[[nodiscard]] WorldInfo handshake(const std::shared_ptr<Store>& store,
                                  const rank_env::RankInfo& info, std::string_view engine,
                                  std::span<const std::string> devices, Deadline deadline);

}  // namespace lockstep::rendezvous
