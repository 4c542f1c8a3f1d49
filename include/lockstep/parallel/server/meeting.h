// Rendezvous of parameter servers and workers.
//
// Under a launcher, the first ranks of the run are servers, and the other ranks are workers:
//
//   auto role = lockstep::ps::role_of_rank(2);        // two servers
//   if (place.is_server) lockstep::ps::Server(place.meeting, place.number, ...).run();
//   else                 lockstep::ps::Worker worker(model, place.meeting, place.number); ...
//
// Without a launcher, processes share a store that one of them or another program serves
// (lockstep/store/open.h), and each is given its number.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::ps {

// Must be equal in all servers and workers, except for the times.
struct Meeting {
  std::shared_ptr<Store> store;  // not used by any other meeting
  int servers = 1;
  int workers = 1;  // that start together; more may join
  // "shm" or "gloo", for all connections; empty: shm within a host, gloo between hosts.
  std::string backend = {};
  Duration timeout = std::chrono::minutes(10);      // of a request to a server
  Duration join_timeout = std::chrono::minutes(5);  // limit for all to join
};

struct Role {
  Meeting meeting;
  bool is_server = false;
  int number = 0;  // of this server, or of this worker
};

// Returns the launcher's assignment for this process. Use it instead of init(). The servers are the
// first `servers` ranks or, with `server_ranks`, the listed ranks, numbered by their index in the
// list. The other ranks are workers, in order. Connects to the run's store, and gives this process
// its share of the host's cores unless OMP_NUM_THREADS says otherwise. Throws BadInput, in one
// line, if there is no launcher, there is no server or no worker, or a listed rank occurs twice or
// does not exist.
[[nodiscard]] Role role_of_rank(int servers, Duration join_timeout = std::chrono::minutes(5));
[[nodiscard]] Role role_of_rank(const std::vector<int>& server_ranks,
                                Duration join_timeout = std::chrono::minutes(5));

}  // namespace lockstep::ps

#pragma GCC visibility pop
