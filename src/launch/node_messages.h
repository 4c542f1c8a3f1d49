// How a run has ended, as the agents of several nodes tell each other over their store: pure
// functions, no store and no time. The parser takes bytes from a peer, bounds what it makes of
// them, and throws BadInput for anything that is not exactly one such text.
//
//   result   done                        all ranks of all nodes ended well
//            stopped SIGNAL NODE         that node's agent was asked to stop
//            failed CODE NODE RANK PID NANOSECONDS     of a rank; RANK -1: of the agent itself;
//                                                      NODE -1 too: HOW says all
//            at TIME
//            how HOW                     "exit code 3"; of an agent a sentence
//            log FILE                    empty: none
//            | LINE                      one for each of its last lines
//
// Each line ends with '\n', and a text holds nothing else that visible_line() would write
// otherwise, such as control characters: what the writers are given they make so, and cut where it
// is too long.
#pragma once

#include "launch/message_lines.h"

#include <lockstep/base/deadline.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

inline constexpr int most_nodes = 10'000;
// Of a run whose nodes come and go: each has a number of its own.
inline constexpr int most_node_number = 999'999;
inline constexpr int most_ranks_of_a_node = 10'000;

struct RunResult {
  enum class Kind { done, stopped, failed };
  Kind kind = Kind::done;
  int signal = 0;  // stopped
  int node = 0;    // stopped, failed: where it began; failed: -1 where that is no node

  // failed:
  int exit_code = 1;
  int rank = -1;  // -1: the agent itself
  int pid = 0;
  Duration after = {};
  std::string at;   // time of day there
  std::string how;  // "exit code 3"; of an agent "program 'x' was not found"
  std::string log_file;
  std::vector<std::string> last_lines;

  bool operator==(const RunResult&) const = default;
};

[[nodiscard]] std::string to_text(const RunResult& run_result);

[[nodiscard]] RunResult parse_run_result(std::string_view text);

}  // namespace lockstep::launch
