// A failure of all ranks as a user of `lockstep run` sees it: printed once, with the ranks named,
// and with flight records that `lockstep report hang` explains.
#include <gtest/gtest.h>

#include <lockstep/base/deadline.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/command.h"
#include "support/temporary_folder.h"

namespace lockstep::apps {
namespace {

const std::string program = LOCKSTEP_PROGRAM_DIR "/../tests/programs/never_calls";

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const auto& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
}

class SharedFailure : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program)) GTEST_SKIP() << "never_calls was not built";
    ::setenv("LOCKSTEP_BACKEND", GetParam(), 1);
  }
  void TearDown() override { ::unsetenv("LOCKSTEP_BACKEND"); }
};

TEST_P(SharedFailure, IsShownOnceAndExplainedByItsRecords) {
  test::TemporaryFolder folder;
  const Finished run = lockstep_command(
      {"run", "-n", "4", "--failure-grace", "1", "--log-dir", folder.path().string(), program});
  EXPECT_EQ(run.status.code, 128 + SIGABRT) << run.error;
  const std::string sentence = "rank 3 never called all_reduce #";
  EXPECT_EQ(count(run.error, "the group failed: after 1s: " + sentence), 1U) << run.error;
  EXPECT_EQ(count(run.error, sentence), 1U) << run.error;
  EXPECT_EQ(count(run.error, "terminate called"), 0U) << run.error;
  EXPECT_EQ(count(run.error, "] error: the group failed"), 0U)
      << "the rank stands before the line: " << run.error;
  const std::string records = (folder.path() / "flight-rank-*.json").string();
  expect_words(run.error,
               {"(bucket 2, 3.91 KiB", "that ranks 0-2 wait in; its last call was broadcast",
                "lockstep run: ranks 0-2 failed as shown above\n",
                "to see the last calls of the ranks: lockstep report hang " + records});

  std::vector<std::string> words{"report", "hang"};
  for (int rank = 0; rank < 3; ++rank)
    words.push_back((folder.path() / ("flight-rank-" + std::to_string(rank) + ".json")).string());
  const Finished report = lockstep_command(words);
  EXPECT_EQ(report.status.code, 0) << report.error;
  expect_words(report.output, {"records of ranks 0-2 of 4 ranks on " + std::string(GetParam()),
                               "no record of rank 3: killed, stopped, still computing",
                               "group world: ranks 0-2 wait in all_reduce #",
                               "(bucket 2, average, 1000 x float32, never_calls.cc:",
                               "; there is no record of rank 3",
                               "group world: ranks 0-2 were told: after 1s: " + sentence,
                               "the last call that all ranks completed: broadcast #"});
}

// The others wait for this rank in init(), whose timeout is 5 minutes.
TEST_P(SharedFailure, OfARankThatEndsWellBeforeInitIsSeenAtOnce) {
  const auto begin = Clock::now();
  const Finished run = lockstep_command({"run", "-n", "3", "--failure-grace", "5", "sh", "-c",
                                         "[ \"$RANK\" = 1 ] && exit 0; exec " + program});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
  EXPECT_NE(run.status.code, 0);
  expect_words(run.error, {"rank 1 ended (exit code 0) before all ranks had met in init()"});
}

INSTANTIATE_TEST_SUITE_P(Backends, SharedFailure, testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::apps
