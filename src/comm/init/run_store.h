// The store through which the ranks of a run meet.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "rank_env/rank_info.h"
#include "sys/socket_address.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Serves the store or connects to it; waits for its server. Throws Timeout if no server answers,
// BadInput if the port is in use or the secret is wrong.
[[nodiscard]] std::shared_ptr<Store> open_run_store(const rank_env::RankInfo& info,
                                                    Deadline deadline);

// MASTER_ADDR and MASTER_PORT, the rendezvous address of ranks. Checked here first: c10d's store
// would try any address until the deadline, or wait for a silent server forever, and print only its
// own warnings.
class MasterAddress {
 public:
  // Resolves the name as SocketAddress::all_tcp() does. Throws BadInput, which names MASTER_ADDR.
  MasterAddress(const std::string& host, std::uint16_t port, Deadline deadline);

  // "10.0.0.7:29500".
  [[nodiscard]] const std::string& text() const { return text_; }
  // The host without brackets.
  [[nodiscard]] const std::string& host() const { return host_; }

  // For rank 0, which listens at this address: logs a warning if none of the resolved addresses
  // belongs to this host. Throws BadInput if this host has no route to it.
  void check_own() const;
  // For the other ranks: blocks until a store of c10d answers there; logs if it takes long. Throws
  // Timeout, which names `listener`, at the deadline, or if a server takes connections and does
  // not answer for 30 s. Throws BadInput if there is no route to it, or if another server answers.
  void wait_for_store(int rank, std::string_view listener, Deadline deadline) const;

 private:
  std::string host_;
  std::string text_;
  std::vector<sys::SocketAddress> addresses_;
};

}  // namespace lockstep
