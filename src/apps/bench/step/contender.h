// One of those that a benchmark of steps compares: rank processes of one system in one mode, which
// are started once and then work only when told to.
//
// A rank says `{"ready": true, "fused": ...}`, with the kind of AdamW that it has, and then answers
// each line, a number of steps, by `{"seconds": [...], "losses": [...], "bytes": ...}`.
#pragma once

#include "apps/bench/rank_processes.h"

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::apps {

struct StepContenderName {
  std::string system;  // lockstep, pytorch
  std::string mode;    // modes.h
  bool operator==(const StepContenderName&) const = default;
};

// "PyTorch zero1", "ours optimizer".
[[nodiscard]] std::string title_of(const StepContenderName& name);

class StepContender {
 public:
  // Starts the ranks; they make themselves ready while the caller goes on.
  StepContender(StepContenderName name, RankCommand command);

  // Blocks until every rank is ready. Throws Error when one ended instead (what it said is on
  // standard error), or when its AdamW is not the one that was asked for.
  void wait_until_ready(bool fused);
  // Lets all ranks make `steps` steps; each counts as long as the rank that took longest for it.
  void take_turn(int steps);
  // What was measured so far does not count.
  void forget();

  [[nodiscard]] const StepContenderName& name() const { return name_; }
  // Of every step since; the means of the turns.
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }
  [[nodiscard]] const std::vector<double>& by_round() const { return by_round_; }
  // Losses of rank 0's first steps.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  // That a rank holds between backward() and zero_grad(): the most of the ranks.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  StepContenderName name_;
  int count_;
  RankProcesses ranks_;
  std::vector<double> losses_;
  std::vector<double> seconds_;
  std::vector<double> by_round_;
  std::int64_t bytes_ = 0;
};

}  // namespace lockstep::apps
