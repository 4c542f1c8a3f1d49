// MASTER_ADDR and MASTER_PORT, as ranks use them to meet. They are checked here first: c10d's store
// would try any address until the deadline, and say nothing but its own warnings.
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
  // Looks the name up, again for some seconds if it is not known yet. BadInput names MASTER_ADDR.
  MasterAddress(const std::string& host, std::uint16_t port, Deadline deadline);

  // "10.0.0.7:29500".
  [[nodiscard]] const std::string& text() const { return text_; }
  // The host without brackets.
  [[nodiscard]] const std::string& host() const { return host_; }

  // On rank 0, which is to listen there: a line of the log if no address is one of this host.
  // BadInput if this host has no way there.
  void check_own() const;
  // On the others: returns when `listener` is there, with a line of the log if that takes long.
  // Timeout at the deadline; BadInput if there is no way there.
  void wait_for_listener(int rank, std::string_view listener, Deadline deadline) const;

 private:
  std::string host_;
  std::string text_;
  std::vector<sys::SocketAddress> addresses_;
};

}  // namespace lockstep
