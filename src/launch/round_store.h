// The store of a run: where its agents and its ranks meet, its secret, and the name of the run.
#pragma once

#include "launch/agent.h"
#include "rank_env/round_keys.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::launch {

namespace round_key = rank_env::round_key;

// Where the agents of several nodes meet, as --rendezvous says it.
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

// Where it is: NodeSpec::store, else NodeSpec::rendezvous. BadInput as parse_rendezvous_endpoint().
[[nodiscard]] inline RendezvousEndpoint endpoint_of(const NodeSpec& spec) {
  return spec.store.empty() ? parse_rendezvous_endpoint(spec.rendezvous)
                            : parse_rendezvous_endpoint(spec.store, "--store");
}

struct RoundStore {
  std::unique_ptr<StoreServer> server;  // where this agent serves it
  std::shared_ptr<TcpStore> store;      // null: this agent itself writes nothing there
  std::string address;                  // "tcp://HOST:PORT", as LOCKSTEP_STORE names it
  std::string secret;
  std::string run_id;  // what another run does not share

  // A new descriptor for one rank to inherit, with a number that scripts do not use for their own.
  [[nodiscard]] sys::FileDescriptor secret_descriptor() const;
};

// Serves a store on 127.0.0.1:port (0: a free port) under a fresh secret. BadInput when the port is
// in use.
[[nodiscard]] RoundStore serve_store(int port);

// Serves the store of a run on one node at 127.0.0.1:port, or serves that of several nodes, or
// comes to it until `join_deadline`, as `nodes` says. BadInput: the port is in use, the address is
// not this machine's, the secret is missing, cannot be read or is another one; Timeout: there is no
// server.
[[nodiscard]] RoundStore open_round_store(const NodeSpec& nodes, int port, Deadline join_deadline);

// A name that no other run has.
[[nodiscard]] std::string fresh_run_id();

// A TCP port that is free now on all addresses.
[[nodiscard]] int free_port();

}  // namespace lockstep::launch
