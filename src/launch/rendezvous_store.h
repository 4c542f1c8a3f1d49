// What the ranks of one run find each other by: the agent's store, its secret, the port that rank 0
// may use.
#pragma once

#include "sys/file_descriptor.h"

#include <lockstep/store/store_server.h>

#include <memory>
#include <string>

namespace lockstep::launch {

class RendezvousStore {
 public:
  // Serves a store on 127.0.0.1:port (0: a free port) under a fresh secret. BadInput when the port
  // is in use.
  explicit RendezvousStore(int port);
  // That of another node's agent.
  RendezvousStore(std::string store_address, std::string secret, std::string run_id);

  // What another run does not share.
  [[nodiscard]] const std::string& run_id() const { return run_id_; }
  // "tcp://HOST:PORT"
  [[nodiscard]] const std::string& store_address() const { return store_address_; }
  [[nodiscard]] const std::string& secret() const { return secret_; }
  // A new descriptor for one rank to inherit, with a number that scripts do not use for their own.
  [[nodiscard]] sys::FileDescriptor secret_descriptor() const;

 private:
  std::string secret_;
  std::string run_id_;
  std::unique_ptr<StoreServer> server_;  // none: another agent's
  std::string store_address_;
};

// A secret that nobody else knows.
[[nodiscard]] std::string random_secret();

// A name that no other run has.
[[nodiscard]] std::string fresh_run_id();

// A TCP port that is free now on all addresses.
[[nodiscard]] int free_port();

}  // namespace lockstep::launch
