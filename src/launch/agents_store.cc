#include "launch/agents_store.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/own_address.h"
#include "sys/socket_address.h"

#include <lockstep/base/error.h>
#include <lockstep/store/secret.h>

#include <cerrno>

namespace lockstep::launch {

namespace {

// A machine's own name often means a loopback address there (Debian: 127.0.1.1), where nobody could
// come.
std::string listen_host(const std::string& host) {
  const bool everywhere =
      !sys::is_loopback_name(host) && sys::SocketAddress::tcp(host, 0).is_loopback();
  return everywhere ? "0.0.0.0" : host;
}

}  // namespace

std::string secret_of_agents(const NodeSpec& spec, const RendezvousEndpoint& at) {
  if (!spec.secret_file.empty()) return read_secret_file(spec.secret_file);
  check_input(sys::is_loopback_name(at.host),
              "--secret-file is missing: agents that meet at {} over a network need a secret (any "
              "file of 16 bytes or more with mode 600, the same on all nodes)",
              at.text());
  return user_secret();
}

std::unique_ptr<StoreServer> serve_agents(const NodeSpec& spec, const RendezvousEndpoint& at,
                                          const std::string& secret) {
  try {
    return std::make_unique<StoreServer>(StoreServerOptions{.host = listen_host(at.host),
                                                            .port = at.port,
                                                            .secret = secret,
                                                            .lost_after = spec.lost_after});
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRNOTAVAIL) throw;
    throw BadInput(formatted(
        "node 0 serves the store at {}, but that is no address of this machine", at.text()));
  }
}

std::shared_ptr<TcpStore> come_to_store(const NodeSpec& spec, const RendezvousEndpoint& at,
                                        const std::string& secret, Deadline deadline,
                                        const std::string& self, const std::string& server) {
  try {
    return std::make_shared<TcpStore>(TcpStoreOptions{.host = at.host,
                                                      .port = at.port,
                                                      .secret = secret,
                                                      .connect_timeout = deadline.left(),
                                                      .call_timeout = spec.lost_after,
                                                      .reconnect = time_to_reconnect(spec),
                                                      .lost_after = spec.lost_after});
  } catch (const Timeout& error) {
    throw Timeout(formatted("{} waited {} for {} at {} ({})", self,
                            format_duration(spec.join_timeout), server, at.text(), error.what()));
  } catch (const BadInput& error) {
    throw BadInput(formatted("{} cannot join: {}", self, error.what()));
  }
}

}  // namespace lockstep::launch
