#include "launch/run_report.h"

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

TEST(Report, AFailureThatWasShownOfTheCauseAloneIsNoLineMore) {
  SharedFailures failures;
  static_cast<void>(failures.take(1, "lockstep eval: no such file\n"));
  FailureReport report{.cause = {.rank = 1, .pid = 7, .exit_code = 1, .how = "exit code 1"},
                       .ranks = 2,
                       .at = "12:00:01",
                       .last_lines = {"lockstep eval: no such file"},
                       .shared = &failures,
                       .recorded = {"no such file"},
                       .others = {{.rank = 0, .how = "exit code 1"}},
                       .ended_together = true};
  EXPECT_EQ(
      describe(report),
      (Lines{"rank 1 of 2 (pid 7) ended with exit code 1 at 12:00:01, after 0s, as shown above",
             "the others ended with it: rank 0: exit code 1"}));
}

TEST(Report, HasAWitnessWhereTheCauseIsSilent) {
  const FailureReport report{
      .cause = {.rank = 0, .pid = 7, .exit_code = 1, .how = "exit code 1"},
      .ranks = 2,
      .at = "12:00:01",
      .witness = Witness{{.rank = 1, .how = "exit code 1"}, {"ValueError: x"}},
      .others = {{.rank = 1, .how = "exit code 1"}}};
  EXPECT_EQ(describe(report),
            (Lines{"rank 0 of 2 (pid 7) ended with exit code 1 at 12:00:01, after 0s",
                   "it had printed nothing", "rank 1 ended with exit code 1 and had said:",
                   "  | ValueError: x", "the others ended after it: rank 1: exit code 1"}));
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
