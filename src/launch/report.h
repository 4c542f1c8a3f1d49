// What the agent says about the end of a run.
#pragma once

#include "launch/agent.h"
#include "launch/shared_failures.h"

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

// Goes before each of the agent's own lines.
inline constexpr const char* speaker = "lockstep run: ";

// A rank that ended by itself, and what it said before that.
struct Witness {
  RankEnd end;
  std::vector<std::string> last_lines;
};

inline constexpr std::size_t reported_lines = 20;

struct FailureReport {
  RankEnd cause;
  int ranks = 1;
  std::string where;  // "node 1, host b"; empty: there is one node
  std::string at;     // time of day
  std::vector<std::string> last_lines;
  const SharedFailures* shared = nullptr;  // what was shown already; null: nothing
  std::string log_file;                    // empty: none
  std::vector<std::string> recorded = {};  // what it has written into its error file
  std::string error_file = {};             // that stays; empty: none
  std::optional<Witness> witness = {};     // where the cause has said nothing
  std::vector<RankEnd> others;             // ranks of this node that ended after it
  bool ended_together = false;             // or a moment before it
};

// Lines without their ends: the cause, its last lines but for those that repeat a shared failure,
// where its log is, who ended of such a failure, and one line for all the others.
[[nodiscard]] std::vector<std::string> describe(const FailureReport& report);

// "rank 0: exit code 1; ranks 2-3: killed by signal 15 (SIGTERM)".
[[nodiscard]] std::string describe(const std::vector<RankEnd>& ends);

}  // namespace lockstep::launch
