// Where the agents of several nodes meet, as --rendezvous says it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::launch {

struct RendezvousEndpoint {
  std::string host;
  std::uint16_t port = 0;

  // "host-a:29400", "[fe80::1]:29400"
  [[nodiscard]] std::string text() const;
};

// BadInput, which names the option, for anything that is not HOST:PORT, and for a host that is
// every address of a machine: the other nodes could not come to it. Looks nothing up.
[[nodiscard]] RendezvousEndpoint parse_rendezvous_endpoint(std::string_view text,
                                                           const char* option = "--rendezvous");

}  // namespace lockstep::launch
