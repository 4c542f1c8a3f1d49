// One of the two systems that a benchmark compares: rank processes that are started once and then
// work only when told to.
//
// A rank says `{"ready": true, "fused": ...}`, with the kind of AdamW that it has, and then answers
// each line, a number of steps, by `{"seconds": [...], "losses": [...]}`.
#pragma once

#include "apps/bench/rank_processes.h"

#include <string>
#include <vector>

namespace lockstep::apps {

class Side {
 public:
  // Starts the ranks; they make themselves ready while the caller goes on.
  explicit Side(RankCommand command);

  // Blocks until every rank is ready. Throws Error when one ended instead; what it said is on
  // standard error.
  void wait_until_ready();
  // Lets all ranks make `steps` steps and returns the seconds of each, on the rank that took
  // longest for it.
  [[nodiscard]] std::vector<double> run(int steps);

  [[nodiscard]] const std::string& name() const { return command_.name; }
  // Losses of rank 0's first steps.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  // What was measured so far does not count.
  void forget() { seconds_.clear(); }
  // Whether rank 0's AdamW is one pass over memory, as it said itself.
  [[nodiscard]] bool is_fused() const { return is_fused_; }
  // Seconds of every step since.
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }

 private:
  RankCommand command_;
  RankProcesses ranks_;
  bool is_fused_ = false;
  std::vector<double> losses_;
  std::vector<double> seconds_;
};

}  // namespace lockstep::apps
