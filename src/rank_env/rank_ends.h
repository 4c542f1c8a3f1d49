// Messages of a rank and its agent about their ends. RankEnds tells ranks that wait for
// another rank in init() that its process has ended with exit code 0: the agent writes this into
// its store. (A rank that ends in any other way ends the run.)
//
// The keys are "lockstep-run/ended/<attempt>/<rank>", with the attempt of RankInfo; the value
// describes the end: "exit code 0".
#pragma once

#include <lockstep/store/store.h>

#include "sys/thread.h"

#include <memory>
#include <string>
#include <string_view>

namespace lockstep::rank_env {

// Writes the entries; used by the agent.
class RankEnds {
 public:
  // Connects to the agent's own store, or to the store of another node's agent.
  RankEnds(std::string address, std::string secret);
  // Waits up to a second for the store, then discards the remaining entries.
  ~RankEnds();
  RankEnds(const RankEnds&) = delete;
  RankEnds& operator=(const RankEnds&) = delete;

  // Queues an entry; does not block.
  void tell(std::string_view attempt, int rank, std::string_view how);

 private:
  struct Writer;
  const std::shared_ptr<Writer> writer_;  // used by the queue's thread
  sys::TaskQueue queue_;
};

// Used by ranks. Throws PeerLost, naming the rank, if a rank of this attempt other than `self` has
// ended.
void check_rank_ends(Store& store, std::string_view attempt, int self);

// If `lockstep run` started this process, directly or through wrappers: when the agent's process
// ends, prints one line on standard error and ends this process with SIGKILL, as the kernel does
// with the agent's own children. Starts one thread per process for this, which holds no lock and no
// memory that other code needs. If another launcher started this process, does nothing.
void watch_agent();

// Writes the text into the error file that the launcher has named (TORCHELASTIC_ERROR_FILE), in
// torchrun's format. The report on this rank then contains the reason even if only another rank
// printed it. Replaces any earlier text. Does nothing if there is no such file; never throws.
void record_own_failure(std::string_view text) noexcept;

}  // namespace lockstep::rank_env
