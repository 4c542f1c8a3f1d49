// By which address others reach this machine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::sys {

// True for "localhost" and numeric loopback addresses: names that mean another machine on each.
[[nodiscard]] bool is_loopback_name(std::string_view host);

// This machine's address as `peer`, a host, sees it: that of the interface towards it. Where `peer`
// is this machine's own name, which many systems resolve to a loopback address (Debian: 127.0.1.1),
// it is one that others can reach, if there is one. Looks names up, which may block for seconds.
[[nodiscard]] std::string address_towards(const std::string& peer);

// The numeric IPv4 addresses of this machine's interfaces that are up, the loopback ones last.
[[nodiscard]] std::vector<std::string> own_addresses();

}  // namespace lockstep::sys
