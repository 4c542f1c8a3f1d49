// What the agent says about the end of a run.
#pragma once

#include <lockstep/launch/agent.h>

#include <string>
#include <vector>

namespace lockstep::launch {

// Goes before each of the agent's own lines.
inline constexpr const char* speaker = "lockstep run: ";

struct FailureReport {
  RankEnd cause;
  int ranks = 1;
  std::string at;  // time of day
  std::vector<std::string> last_lines;
  std::string log_file;         // empty: none
  std::vector<RankEnd> others;  // ranks that ended after it
};

// Lines without their ends: the cause, its last lines, where its log is, and one line for all the
// others.
[[nodiscard]] std::vector<std::string> describe(const FailureReport& report);

// "rank 0: exit code 1; ranks 2-3: killed by signal 15 (SIGTERM)".
[[nodiscard]] std::string describe(const std::vector<RankEnd>& ends);

}  // namespace lockstep::launch
