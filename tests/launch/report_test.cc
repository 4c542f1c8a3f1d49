#include "launch/report.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

TEST(Report, NamesTheCauseItsLastLinesAndTheOthers) {
  const FailureReport report{
      .cause = {.rank = 1, .pid = 77, .exit_code = 3, .how = "exit code 3", .after = 90s},
      .ranks = 4,
      .at = "12:00:01",
      .last_lines = {"Traceback", "ValueError: x"},
      .log_file = "logs/rank-1.log",
      .others = {{.rank = 2, .how = "exit code 1"},
                 {.rank = 3, .how = "killed by signal 15 (SIGTERM)"},
                 {.rank = 0, .how = "exit code 1"}}};
  EXPECT_EQ(
      describe(report),
      (Lines{"rank 1 of 4 (pid 77) ended with exit code 3 at 12:00:01, after 1m30s",
             "its last lines:", "  | Traceback", "  | ValueError: x", "its log: logs/rank-1.log",
             "the others ended after it: ranks 0, 2: exit code 1; rank 3: killed by signal 15 "
             "(SIGTERM)"}));
}

TEST(Report, ASilentRankAlone) {
  const FailureReport report{.cause = {.rank = 0,
                                       .pid = 5,
                                       .exit_code = 137,
                                       .how = "killed by signal 9 (SIGKILL)",
                                       .after = 250ms},
                             .ranks = 1,
                             .at = "00:00:00",
                             .last_lines = {},
                             .log_file = {},
                             .others = {}};
  EXPECT_EQ(describe(report),
            (Lines{"rank 0 of 1 (pid 5) was killed by signal 9 (SIGKILL) at 00:00:00, after 250ms",
                   "it had printed nothing"}));
}

}  // namespace
}  // namespace lockstep::launch
