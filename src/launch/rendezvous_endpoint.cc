#include "launch/rendezvous_endpoint.h"

#include "base/check.h"
#include "base/text.h"

namespace lockstep::launch {

std::string RendezvousEndpoint::text() const {
  const bool is_six = host.find(':') != std::string::npos;
  return (is_six ? "[" + host + "]:" : host + ":") + std::to_string(port);
}

RendezvousEndpoint parse_rendezvous_endpoint(std::string_view text, const char* option) {
  const std::size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto port = parse_integer(colon == std::string_view::npos ? "" : text.substr(colon + 1));
  check_input(!host.empty() && port && *port >= 1 && *port <= 65535,
              "{}: expected HOST:PORT, found '{}'", option, text);
  check_input(host != "0.0.0.0" && host != "::",
              "{}: expected an address that the other nodes can reach, found {}", option, host);
  return {std::string(host), static_cast<std::uint16_t>(*port)};
}

}  // namespace lockstep::launch
