// MASTER_ADDR and MASTER_PORT, the rendezvous address of ranks. Checked here first: c10d's store
// would try any address until the deadline and print only its own warnings.
#pragma once

#include <lockstep/base/deadline.h>

#include "sys/socket_address.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class MasterAddress {
 public:
  // Resolves the name; retries for some seconds if it is unknown. Throws BadInput, which names
  // MASTER_ADDR.
  MasterAddress(const std::string& host, std::uint16_t port, Deadline deadline);

  // "10.0.0.7:29500".
  [[nodiscard]] const std::string& text() const { return text_; }
  // The host without brackets.
  [[nodiscard]] const std::string& host() const { return host_; }

  // For rank 0, which listens there: logs a warning if no address belongs to this host. Throws
  // BadInput if this host has no route to it.
  void check_own() const;
  // For the other ranks: blocks until `listener` accepts connections; logs if that takes long.
  // Throws Timeout at the deadline; BadInput if there is no route to it.
  void wait_for_listener(int rank, std::string_view listener, Deadline deadline) const;

 private:
  std::string host_;
  std::string text_;
  std::vector<sys::SocketAddress> addresses_;
};

}  // namespace lockstep
