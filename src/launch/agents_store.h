// The store at which the agents of several nodes meet: its secret, who serves it, how the others
// come to it.
#pragma once

#include "launch/agent.h"
#include "launch/rendezvous_endpoint.h"

#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <memory>
#include <string>

namespace lockstep::launch {

// Where it is: NodeSpec::store, else NodeSpec::rendezvous. BadInput as parse_rendezvous_endpoint().
[[nodiscard]] inline RendezvousEndpoint endpoint_of(const NodeSpec& spec) {
  return spec.store.empty() ? parse_rendezvous_endpoint(spec.rendezvous)
                            : parse_rendezvous_endpoint(spec.store, "--store");
}

// The content of --secret-file, or at a loopback address the user's own. BadInput as
// read_secret_file(), and when it is missing.
[[nodiscard]] std::string secret_of_agents(const NodeSpec& spec, const RendezvousEndpoint& at);

// Serves the store from this process. BadInput when the port is in use or the address is not this
// machine's.
[[nodiscard]] std::unique_ptr<StoreServer> serve_agents(const NodeSpec& spec,
                                                        const RendezvousEndpoint& at,
                                                        const std::string& secret);

// How long a store that was lost is waited for: where it is served apart, which may start it anew.
[[nodiscard]] inline Duration time_to_reconnect(const NodeSpec& spec) {
  return spec.store.empty() ? Duration::zero() : spec.join_timeout;
}

// Blocks until the server answers or the deadline passes. Errors call this side `self` ("node 1")
// and the other `server` ("node 0"). BadInput: another secret; Timeout: there is no server.
[[nodiscard]] std::shared_ptr<TcpStore> come_to_store(const NodeSpec& spec,
                                                      const RendezvousEndpoint& at,
                                                      const std::string& secret, Deadline deadline,
                                                      const std::string& self,
                                                      const std::string& server);

}  // namespace lockstep::launch
