// A rank is killed in the middle of collectives under `lockstep run`.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <thread>

#include <poll.h>
#include <unistd.h>

#include "apps/command.h"
#include "support/shared_files.h"
#include "sys/sockets.h"

namespace lockstep::apps {
namespace {

using namespace std::chrono_literals;

const std::string loop = LOCKSTEP_PROGRAM_DIR "/../tests/programs/all_reduce_loop";

// Parses "[rank 1] pid 77"; returns 0 if the line is missing.
pid_t pid_of_rank(const std::string& output, int rank) {
  const std::string line = "[rank " + std::to_string(rank) + "] pid ";
  const std::size_t at = output.find(line);
  return at == std::string::npos ? 0 : std::stoi(output.substr(at + line.size()));
}

// Returns the pids of all ranks, once every rank has made some steps.
std::vector<pid_t> await_ranks(const Started& run, int ranks) {
  std::vector<pid_t> pids;
  const Deadline limit = Deadline::after(40s);
  while (static_cast<int>(pids.size()) < ranks && !limit.passed()) {
    std::this_thread::sleep_for(10ms);
    const std::string output = content(run.output);
    pids.clear();
    for (int rank = 0; rank < ranks; ++rank)
      if (const pid_t pid = pid_of_rank(output, rank); pid != 0) pids.push_back(pid);
  }
  return pids;
}

struct LostRank : testing::Test {
  void SetUp() override {
    if (!std::filesystem::exists(loop)) GTEST_SKIP() << "all_reduce_loop was not built";
  }
};

TEST_F(LostRank, TheOthersNameItWithinASecondAndNothingIsLeft) {
  const auto shared_before = test::shared_files();
  Started run = start_lockstep({"run", "-n", "3", loop});
  const std::vector<pid_t> pids = await_ranks(run, 3);
  ASSERT_EQ(pids.size(), 3U) << content(run.error);
  ::kill(pids[1], SIGKILL);
  const auto killed = Clock::now();
  const Finished end = finish(std::move(run));
  EXPECT_LT(Clock::now() - killed, 1s);

  EXPECT_EQ(end.status.code, 128 + SIGKILL);
  EXPECT_NE(end.error.find("lockstep run: rank 1 of 3 (pid " + std::to_string(pids[1]) +
                           ") was killed by signal 9 (SIGKILL)"),
            std::string::npos)
      << end.error;
  EXPECT_NE(end.error.find("the others ended after it: ranks 0, 2: exit code 9\n"),
            std::string::npos)
      << end.error;
  EXPECT_NE(end.error.find("the group failed: rank 1 of 3 was lost: "), std::string::npos)
      << end.error;
  const auto own_line = end.error.find("lost: ", end.error.find("] lost: "));
  EXPECT_NE(own_line, std::string::npos) << "what the program itself says of it: " << end.error;
  EXPECT_EQ(end.error.find("rank 1 of 3 was lost: ", end.error.find('\n', own_line)),
            std::string::npos)
      << "shown more than once: " << end.error;
  EXPECT_NE(end.error.find("ranks 0, 2 failed as shown above"), std::string::npos) << end.error;
  for (pid_t pid : pids) EXPECT_NE(::kill(pid, 0), 0) << "process " << pid << " is left";
  EXPECT_EQ(test::shared_files(), shared_before);
}

// Kills the agent and expects all ranks to end within `limit`.
void expect_end_with_agent(Started run, int ranks, Duration limit) {
  const std::vector<pid_t> pids = await_ranks(run, ranks);
  ASSERT_EQ(std::ssize(pids), ranks) << content(run.error);
  std::vector<sys::FileDescriptor> ends;
  for (pid_t pid : pids) ends.push_back(sys::open_pidfd(pid));
  run.process.send(SIGKILL);
  const Deadline soon = Deadline::after(limit);
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    const bool has_ended = sys::wait_ready(ends[rank].get(), POLLIN, soon);
    EXPECT_TRUE(has_ended) << "pid " << pids[rank];
    if (!has_ended) ::kill(pids[rank], SIGKILL);
  }
}

TEST_F(LostRank, WhenTheAgentIsKilledAllRanksEndWithinASecond) {
  const auto shared_before = test::shared_files();
  expect_end_with_agent(start_lockstep({"run", "-n", "3", loop}), 3, 1s);
  EXPECT_EQ(test::shared_files(), shared_before);
}

// A wrapper script between the agent and the rank; "$0" is the rank's program.
struct WrappedRank : LostRank, testing::WithParamInterface<const char*> {};

TEST_P(WrappedRank, EndsWithTheAgentToo) {
  expect_end_with_agent(start_lockstep({"run", "-n", "2", "sh", "-c", GetParam(), loop}), 2, 2s);
}

INSTANTIATE_TEST_SUITE_P(Wrappers, WrappedRank,
                         testing::Values("\"$0\"; true", "setsid -w \"$0\"; true",
                                         "setsid sh -c 'exec \"$0\"' \"$0\" & wait",
                                         // Here, only the mechanisms inside the rank remain.
                                         "env -u TORCHELASTIC_RUN_ID setsid -w \"$0\"; true"));

}  // namespace
}  // namespace lockstep::apps
