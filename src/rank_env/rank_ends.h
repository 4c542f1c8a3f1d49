// How ranks that wait for another one in init() learn that its process has ended, with exit code 0
// too: the agent says so in its store. (A rank that ends otherwise ends the run.)
//
// Keys: "lockstep-run/ended/<attempt>/<rank>", the attempt as in RankInfo; the value is the words
// of the end, "exit code 0".
#pragma once

#include <lockstep/store/store.h>

#include "sys/task_queue.h"

#include <memory>
#include <string>
#include <string_view>

namespace lockstep::rank_env {

// The agent's side.
class RankEnds {
 public:
  // Of the agent's own store, or that of another node's agent.
  RankEnds(std::string address, std::string secret);
  // Gives up what the store has not taken within a second.
  ~RankEnds();
  RankEnds(const RankEnds&) = delete;
  RankEnds& operator=(const RankEnds&) = delete;

  // Blocks for nothing.
  void tell(std::string_view attempt, int rank, std::string_view how);

 private:
  struct Writer;
  const std::shared_ptr<Writer> writer_;  // of the queue's thread
  sys::TaskQueue queue_;
};

// The rank's side: PeerLost names a rank of this attempt, but not `self`, that has ended.
void check_rank_ends(Store& store, std::string_view attempt, int self);

}  // namespace lockstep::rank_env
