#include "launch/agent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include "launch/run_agent.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

TEST(Agent, EveryRankRunsWithItsNumber) {
  for (int ranks : {1, 2, 3, 8}) {
    const Ran ran = run_agent(shells(ranks, "echo $RANK of $WORLD_SIZE"));
    std::multiset<std::string> expected;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string number = std::to_string(rank);
      expected.insert("[rank " + number + "] " + number + " of " + std::to_string(ranks));
    }
    EXPECT_EQ(lines_of(ran.output), expected);
    EXPECT_EQ(ran.error, "");
    EXPECT_EQ(ran.result.exit_code, 0);
    EXPECT_FALSE(ran.result.cause);
    EXPECT_EQ(ran.result.ends.size(), static_cast<std::size_t>(ranks));
  }
}

TEST(Agent, RanksOfARunShareItsPortAndNameAndRunsDoNot) {
  WorkerSpec spec = shells(2, "echo $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RUN_ID");
  spec.prefix = PrefixStyle::none;
  const auto first = lines_of(run_agent(spec).output), second = lines_of(run_agent(spec).output);
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(*first.begin(), *first.rbegin());
  EXPECT_TRUE(first.begin()->starts_with("127.0.0.1 "));
  EXPECT_NE(*first.begin(), *second.begin());
}

TEST(Agent, RaisesItsLimitOfOpenFilesButNotThatOfItsRanks) {
  test::expect_ranks(1, [](int) {
    const rlimit low{48, 4096};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    const Ran ran = run_agent(shells(16, "ulimit -Sn; ulimit -Hn"));
    EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
    const auto lines = lines_of(ran.output);
    EXPECT_EQ(lines.count("[rank 15] 48"), 1U) << ran.output << ran.error;
    EXPECT_EQ(lines.count("[rank 15] 4096"), 1U);
    rlimit after{};
    ::getrlimit(RLIMIT_NOFILE, &after);
    EXPECT_EQ(after.rlim_cur, 48U);
  });
}

TEST(Agent, TooFewOpenFilesAreOneSentence) {
  test::expect_ranks(1, [](int) {
    const rlimit low{48, 48};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    const Ran few = run_agent(shells(2, "od -An -tx1 /proc/self/fd/$LOCKSTEP_SECRET_FD"));
    EXPECT_EQ(few.result.exit_code, 0) << few.error;
    EXPECT_EQ(
        test::message_of<BadInput>([] { run_agent(shells(9, "true")); }),
        "starting 9 ranks: expected a limit of at least 60 open files, found 48: raise the hard "
        "limit (ulimit -n), or start fewer ranks");
  });
}

TEST(Agent, WithoutProcNothingIsStarted) {
  test::expect_ranks(1, [](int) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "", MS_REC | MS_PRIVATE, "") != 0 ||
        ::mount("none", "/proc", "tmpfs", 0, "") != 0) {
      std::puts("skipped: only root can hide /proc");
      return;
    }
    EXPECT_EQ(test::message_of<SystemError>([] { run_agent(shells(1, "true")); }),
              "reading /proc, where the agent finds processes that its ranks leave behind: No such "
              "file or directory");
  });
}

// Writes a flight record, as init() does when a group dies.
constexpr const char* leaves_a_record =
    "mkdir -p $LOCKSTEP_FLIGHT; echo {} > $LOCKSTEP_FLIGHT/flight-rank-$RANK.json; "
    "echo $LOCKSTEP_FLIGHT; ";

std::string folder_of_records(const Ran& ran) {
  const std::size_t begin = ran.output.find('/');
  return ran.output.substr(begin, ran.output.find('\n') - begin);
}

TEST(Agent, FlightRecordsAreKeptAndNamedOnlyWhenTheRunHasFailed) {
  const Ran failed = run_agent(shells(1, std::string(leaves_a_record) + "exit 3"));
  const std::string kept = folder_of_records(failed);
  EXPECT_NE(failed.error.find("lockstep report hang " + kept + "/flight-rank-0.json\n"),
            std::string::npos)
      << failed.error;
  EXPECT_TRUE(std::filesystem::exists(kept + "/flight-rank-0.json"));
  std::filesystem::remove_all(kept);

  const Ran well = run_agent(shells(1, leaves_a_record));
  EXPECT_FALSE(std::filesystem::exists(folder_of_records(well)));
  EXPECT_EQ(well.error, "");

  WorkerSpec spec = shells(1, std::string(leaves_a_record) + "kill -TERM $PPID; exec sleep 60");
  spec.forward_signals = true;
  const Ran stopped = run_agent(spec);
  EXPECT_EQ(stopped.result.exit_code, 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(folder_of_records(stopped)));
  EXPECT_EQ(stopped.error.find("report hang"), std::string::npos) << stopped.error;

  const test::TemporaryFolder logs;  // a folder that the user names belongs to the user
  WorkerSpec logged = shells(1, leaves_a_record);
  logged.log_folder = logs.path().string();
  EXPECT_EQ(folder_of_records(run_agent(logged)), logs.path().string());
  EXPECT_TRUE(std::filesystem::exists(logs / "flight-rank-0.json"));
}

TEST(Agent, TheCommandForFlightRecordsIsQuotedForAShell) {
  const test::TemporaryFolder folder;
  for (const int ranks : {1, 2}) {
    WorkerSpec spec = shells(ranks,
                             "mkdir -p \"$LOCKSTEP_FLIGHT\"; "
                             "echo {} > \"$LOCKSTEP_FLIGHT/flight-rank-$RANK.json\"; exit 3");
    spec.log_folder = (folder / "my logs").string() + "/";
    const std::string records = ranks == 1 ? "flight-rank-0.json'" : "'flight-rank-*.json";
    test::expect_words(run_agent(spec).error, {"lockstep report hang '" +
                                               (folder / "my logs/").string() + records + "\n"});
  }
}

TEST(Agent, OnlyTheOwnerMayReadTheSecretAndNobodyChangeIt) {
  const Ran ran = run_agent(shells(1, "stat -L -c %a /proc/self/fd/$LOCKSTEP_SECRET_FD"));
  EXPECT_EQ(ran.output, "[rank 0] 400\n");
}

TEST(Agent, EachRankCanReadTheSecret) {
  WorkerSpec spec =
      shells(3, "od -An -v -tx1 /proc/self/fd/$LOCKSTEP_SECRET_FD | tr -d ' \\n'; echo");
  spec.prefix = PrefixStyle::none;
  const auto secrets = lines_of(run_agent(spec).output);
  ASSERT_EQ(secrets.size(), 3U);
  EXPECT_EQ(*secrets.begin(), *secrets.rbegin());
  EXPECT_EQ(secrets.begin()->size(), 2 * rank_env::secret_bytes);
  EXPECT_NE(*secrets.begin(), std::string(2 * rank_env::secret_bytes, '0'));
  EXPECT_NE(secrets, lines_of(run_agent(spec).output)) << "the secret is another each run";
}

TEST(Agent, OnlyRankZeroHasTheStandardInput) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "words\n", 6), 6);
  ::close(ends[1]);
  const sys::FileDescriptor before(::dup(0));
  ::dup2(ends[0], 0);
  ::close(ends[0]);
  WorkerSpec spec = shells(3, "echo \"<$(cat)>\"");
  spec.input = StandardInput::rank_0;
  const Ran ran = run_agent(spec);
  ::dup2(before.get(), 0);
  EXPECT_EQ(lines_of(ran.output),
            (std::multiset<std::string>{"[rank 0] <words>", "[rank 1] <>", "[rank 2] <>"}));
}

// The other ranks fail after the agent has reaped rank 1; until then its process exists. SIGTERM
// from the agent in the meantime must not change the result.
TEST(Agent, TheFirstFailureIsReportedAndItsCodeReturned) {
  const test::TemporaryFolder folder;
  const test::TemporaryFolder deaf;
  const std::string file = folder / "rank-1";
  WorkerSpec spec = shells(3, "if [ $RANK = 1 ]; then " + until_files(2, deaf.path().string()) +
                                  "echo some words >&2; echo $$ > " + file + ".part; mv " + file +
                                  ".part " + file + "; exit 3; fi; trap '' TERM; touch " +
                                  deaf.path().string() + "/$RANK; " + until("[ -e " + file + " ]") +
                                  until("! kill -0 $(cat " + file + ") 2>/dev/null") + "exit 1");
  spec.failure_grace = far_too_long;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 3);
  ASSERT_TRUE(ran.result.cause);
  EXPECT_EQ(ran.result.cause->rank, 1);
  EXPECT_EQ(ran.result.ends.size(), 3U);
  EXPECT_NE(ran.error.find("lockstep run: rank 1 of 3 (pid " +
                           std::to_string(ran.result.cause->pid) + ") ended with exit code 3 at "),
            std::string::npos)
      << ran.error;
  EXPECT_NE(ran.error.find("lockstep run:   | some words\n"), std::string::npos) << ran.error;
  EXPECT_NE(ran.error.find("the others ended after it: ranks 0, 2: exit code 1\n"),
            std::string::npos)
      << ran.error;
}

TEST(Agent, AKilledRankGives128PlusTheSignal) {
  const Ran ran = run_agent(shells(2, "[ $RANK = 0 ] || kill -9 $$; sleep 0.1"));
  EXPECT_EQ(ran.result.exit_code, 137);
  EXPECT_EQ(ran.result.cause->how, "killed by signal 9 (SIGKILL)");
}

TEST(Agent, ARankThatHasSaidWhyIsNotReported) {
  WorkerSpec spec = shells(2, "[ $RANK = 0 ] || { echo why >&2; exit 3; }; sleep 0.1");
  spec.explained_exit_code = 3;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 3);
  EXPECT_EQ(ran.result.cause->rank, 1);
  EXPECT_EQ(ran.error, "[rank 1] why\n");
}

TEST(Agent, OnlyTheLastTwentyLinesAreRepeated) {
  const Ran ran = run_agent(shells(1, "for i in $(seq 100); do echo line $i; done; exit 1"));
  EXPECT_EQ(ran.error.find("| line 80\n"), std::string::npos) << ran.error;
  EXPECT_NE(ran.error.find("| line 81\n"), std::string::npos) << ran.error;
  EXPECT_NE(ran.error.find("| line 100\n"), std::string::npos) << ran.error;
}

TEST(Agent, SurvivorsOfAFailureAreEnded) {
  WorkerSpec spec = shells(3, "if [ $RANK = 2 ]; then exit 5; fi; exec sleep 60");
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 5);
  EXPECT_NE(ran.error.find("ranks 0, 1: killed by signal 15 (SIGTERM)"), std::string::npos)
      << ran.error;
  EXPECT_LT(ran.took, far_too_long);
}

TEST(Agent, SurvivorsThatIgnoreItAreKilledAfterTheirGrace) {
  const test::TemporaryFolder deaf;
  WorkerSpec spec = shells(
      2, "trap '' TERM; touch " + deaf.path().string() + "/$RANK; if [ $RANK = 1 ]; then " +
             until_files(2, deaf.path().string()) + "exit 5; fi; while :; do sleep 0.05; done");
  spec.failure_grace = 200ms;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 5);
  EXPECT_NE(ran.error.find("rank 0: killed by signal 9 (SIGKILL)"), std::string::npos) << ran.error;
}

TEST(Agent, ARankThatEndsWellDoesNotEndTheOthers) {
  const Ran ran = run_agent(shells(2, "[ $RANK = 0 ] && exit 0; sleep 0.3; echo still here"));
  EXPECT_EQ(ran.result.exit_code, 0);
  EXPECT_EQ(ran.output, "[rank 1] still here\n");
}

TEST(Agent, WhatIsNotFoundIs127WithOneLine) {
  const Ran ran = run_agent({.program = "no-such-program", .ranks = 2});
  EXPECT_EQ(ran.result.exit_code, 127);
  EXPECT_EQ(
      ran.error,
      "lockstep run: program 'no-such-program' was not found in PATH or in the current folder\n");
}

TEST(Agent, WhatCannotBeExecutedIs126WithOneLine) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "script";
  std::ofstream(file) << "#!/no/such/interpreter\n";
  ::chmod(file.c_str(), 0755);
  const Ran ran = run_agent({.program = file, .ranks = 2});
  EXPECT_EQ(ran.result.exit_code, 126);
  EXPECT_EQ(std::count(ran.error.begin(), ran.error.end(), '\n'), 1) << ran.error;
}

TEST(Agent, ScriptsAreProgramsToo) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "script";
  std::ofstream(file) << "#!/bin/sh\necho \"$RANK:$1:$2\"\n";
  ::chmod(file.c_str(), 0755);
  const Ran ran = run_agent({.program = file, .arguments = {"a b", "*"}, .ranks = 2});
  EXPECT_EQ(lines_of(ran.output),
            (std::multiset<std::string>{"[rank 0] 0:a b:*", "[rank 1] 1:a b:*"}));
}

TEST(Agent, NumbersThatMakeNoSenseAreBadInput) {
  EXPECT_THROW(Agent({.program = "true", .ranks = 0}), BadInput);
  EXPECT_THROW(Agent({.program = "true", .max_restarts = -1}), BadInput);
  EXPECT_THROW(Agent({.program = "true", .hung_after = -1s}), BadInput);
  EXPECT_THROW(Agent({.program = "true", .grace = -1s}), BadInput);
}

}  // namespace
}  // namespace lockstep::launch
