// How parameter servers and workers find each other.
//
// Under a launcher the first ranks of the run are servers, and the others workers:
//
//   auto place = lockstep::ps::place_of_rank(2);        // two servers
//   if (place.is_server) lockstep::ps::Server(place.meeting, place.number, ...).run();
//   else                 lockstep::ps::Worker worker(model, place.meeting, place.number); ...
//
// Without one, processes share a store that one of them or another program serves
// (lockstep/store/open.h), and each is told its number.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::ps {

// Equal in all servers and workers, but for the times.
struct Meeting {
  std::shared_ptr<Store> store;  // used by no other meeting
  int servers = 1;
  int workers = 1;  // that begin together; more may join
  // "shm" or "gloo", for all connections; empty: shm inside a host, gloo between two.
  std::string backend = {};
  Duration timeout = std::chrono::minutes(10);      // of a request to a server
  Duration join_timeout = std::chrono::minutes(5);  // until all must have come
};

struct Place {
  Meeting meeting;
  bool is_server = false;
  int number = 0;  // of this server, or of this worker
};

// What the launcher says of this process (as init(), which must not be called besides): ranks
// 0 ... servers - 1 are servers, or those that `server_ranks` lists, by their places in it. The
// rest are workers, in their order. Connects to the run's store, and gives this process its share
// of the host's cores unless OMP_NUM_THREADS says otherwise. BadInput, in one line: no launcher,
// fewer than one server or worker, a rank that is listed twice or is not there.
[[nodiscard]] Place place_of_rank(int servers, Duration join_timeout = std::chrono::minutes(5));
[[nodiscard]] Place place_of_rank(const std::vector<int>& server_ranks,
                                  Duration join_timeout = std::chrono::minutes(5));

}  // namespace lockstep::ps

#pragma GCC visibility pop
