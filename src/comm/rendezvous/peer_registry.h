// What the ranks of a group know of one another by the store, for engines that hear nothing
// themselves when a peer ends: NCCL's kernels on one machine wait for ever.
//
// Keys, under "lockstep/registry/<group>/": "rank/<rank>" a rank's process and its words;
// "at/<place>" of the ranks that have come to a meeting (exchange.h); "left/<rank>" that a rank
// needs no peer any more.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "sys/peer_processes.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rendezvous {

class PeerRegistry {
 public:
  // Tells the others that this rank is here, and blocks until all have said so. Timeout names those
  // that did not come.
  PeerRegistry(std::shared_ptr<Store> store, std::string group, int rank, int size,
               std::string_view words, Duration join_timeout);

  [[nodiscard]] const std::string& group() const { return group_; }
  // What rank `rank` said of itself.
  [[nodiscard]] const std::string& words(int rank) const { return words_.at(rank); }

  // Blocks until `count` ranks have come to `place`, a name that no other meeting of the group has.
  // Aborted once `stop` is set; PeerLost as check_processes().
  void meet(const std::string& place, int count, const std::atomic<bool>& stop) const;
  // PeerLost names a rank of this machine whose process has ended.
  void check_processes() const;
  // Tells the others that this rank needs nobody any more.
  void leave() const;
  // Blocks until all others have left or their processes have ended, `timeout` at most.
  void await_the_others(Duration timeout) const;

 private:
  [[nodiscard]] std::string key(std::string_view name) const;

  std::shared_ptr<Store> store_;
  std::string group_;
  int rank_;
  std::vector<std::string> words_;  // of each rank
  sys::PeerProcesses processes_;
};

}  // namespace lockstep::rendezvous
