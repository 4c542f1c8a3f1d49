// The store of a run, through which its agents and ranks communicate; its secret and the run's
// name.
#pragma once

#include "launch/agent.h"
#include "rank_env/round_keys.h"
#include "sys/file_descriptor.h"
#include "sys/socket_address.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <memory>
#include <string>

namespace lockstep::launch {

namespace round_key = rank_env::round_key;

// Returns where the agents of several nodes meet: NodeSpec::store, else NodeSpec::rendezvous.
// Throws BadInput, which names the option, if the text is not HOST:PORT or if the host is a
// wildcard address, which other nodes could not connect to. Resolves no names.
[[nodiscard]] sys::HostPort endpoint_of(const NodeSpec& spec);

struct RoundStore {
  std::unique_ptr<StoreServer> server;  // null unless this agent serves the store
  std::shared_ptr<TcpStore> store;      // null: this agent itself writes nothing to the store
  std::string address;                  // "tcp://HOST:PORT", as LOCKSTEP_STORE names it
  std::string secret;
  std::string run_id;  // unique per run

  // Returns a new descriptor that one rank inherits, with a high number that scripts do not use.
  [[nodiscard]] sys::FileDescriptor secret_descriptor() const;
};

// Serves a store on 127.0.0.1 under a fresh secret.
[[nodiscard]] RoundStore serve_store();

// Depending on `nodes`: serves the store of a run on one node on 127.0.0.1, serves the store of
// several nodes, or connects to it (until `join_deadline`). Throws BadInput if the port is in use,
// the address is not this host's, or the secret is missing, unreadable or wrong; Timeout if there
// is no server.
[[nodiscard]] RoundStore open_round_store(const NodeSpec& nodes, Deadline join_deadline);

// Returns a name that no other run has.
[[nodiscard]] std::string fresh_run_id();

// Returns a TCP port that is currently free on all addresses.
[[nodiscard]] int free_port();

}  // namespace lockstep::launch
