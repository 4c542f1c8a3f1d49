// One of the systems that a row compares: its ranks, told in turn what to call.
#pragma once

#include "apps/bench/collectives/row.h"
#include "apps/bench/rank_processes.h"

#include <string>
#include <vector>

namespace lockstep::apps {

class Contender {
 public:
  // The ranks make themselves ready while the caller goes on. `memories`: the kinds of tensors that
  // mean something to this system.
  Contender(std::string name, std::vector<Memory> memories, RankProcesses ranks)
      : name_(std::move(name)), memories_(std::move(memories)), ranks_(std::move(ranks)) {}

  // Blocks until every rank is ready. Throws Error when one ended instead; what it said is on
  // standard error.
  void wait_until_ready();
  // Seconds of each counted call, of the rank that took longest for it. Throws Error when a rank
  // ended, Timeout when one does not answer for minutes.
  [[nodiscard]] std::vector<double> run(const Turn& turn);

  [[nodiscard]] const std::string& name() const { return name_; }
  // What it is in full: "Open MPI v4.1.4".
  [[nodiscard]] const std::string& library() const { return library_; }
  [[nodiscard]] const std::vector<Memory>& memories() const { return memories_; }

 private:
  std::string name_;
  std::string library_;
  std::vector<Memory> memories_;
  RankProcesses ranks_;
};

}  // namespace lockstep::apps
