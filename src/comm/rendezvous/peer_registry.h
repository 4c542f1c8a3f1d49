// PeerRegistry publishes the ranks' processes in the store, for backends that do not notice when a
// peer ends: NCCL's kernels on one host would wait forever.
//
// Keys, under "lockstep/registry/<group>/": "rank/<rank>", a rank's process and its words;
// "at/<place>", the ranks that have come to a meeting (meeting.h); "left/<rank>", the rank needs
// no peer any more.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "sys/process_info.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rendezvous {

class PeerRegistry {
 public:
  // Publishes that this rank has joined, and blocks until all ranks have joined. Throws Timeout,
  // which names the missing ranks.
  PeerRegistry(std::shared_ptr<Store> store, std::string group, int rank, int size,
               std::string_view words, Duration join_timeout);

  [[nodiscard]] const std::string& group() const { return group_; }
  // Returns the words that `rank` published.
  [[nodiscard]] const std::string& words(int rank) const { return words_.at(rank); }

  // Blocks until `count` ranks have called it for `place`, a name that is unique in the group.
  // Throws Aborted once `stop` is set, Timeout after `timeout`, and PeerLost like
  // check_processes().
  void meet(const std::string& place, int count, const std::atomic<bool>& stop,
            Duration timeout) const;
  // Throws PeerLost if the process of a rank on this host has ended; the message names the rank.
  void check_processes() const;
  // Publishes that this rank needs no peer any more.
  void leave() const;
  // Returns true if all ranks have left. Does not wait.
  [[nodiscard]] bool have_all_left() const;
  // Blocks until all other ranks have left or their processes have ended, at most `timeout`.
  void await_the_others(Duration timeout) const;

 private:
  [[nodiscard]] std::string key(std::string_view name) const;
  [[nodiscard]] std::string key_of_leaving(int rank) const;

  std::shared_ptr<Store> store_;
  std::string group_;
  int rank_;
  std::vector<std::string> words_;  // by rank
  sys::PeerProcesses processes_;
};

}  // namespace lockstep::rendezvous
