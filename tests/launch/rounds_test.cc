// Runs with rounds: workers that fail, hang, or wait for the next round.
#include "launch/run_agent.h"
#include "launch/survivor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include <unistd.h>

#include <lockstep/store/open.h>
#include "rank_env/rank_info.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::expect_words;

WorkerSpec restarting(int ranks, int max_restarts, std::string script) {
  WorkerSpec spec = shells(ranks, std::move(script));
  spec.prefix = PrefixStyle::none;
  spec.max_restarts = max_restarts;
  return spec;
}

constexpr const char* says_where =
    "echo $LOCKSTEP_ROUND/$RANK/$TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS; ";

TEST(Rounds, AFailureStartsAllRanksAnew) {
  const test::TemporaryFolder folder;
  const Ran ran = run_agent(restarting(2, 3,
                                       says_where + all_come(2, folder.path().string()) +
                                           "[ $LOCKSTEP_ROUND = 2 ] && exit 0; echo words >&2; "
                                           "[ $RANK = 1 ] && exit 3; exec sleep 60"));
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  EXPECT_FALSE(ran.result.cause);
  EXPECT_EQ(lines_of(ran.output), (std::multiset<std::string>{"0/0/0/3", "0/1/0/3", "1/0/1/3",
                                                              "1/1/1/3", "2/0/2/3", "2/1/2/3"}));
  expect_words(ran.error, {"rank 1 of 2 (pid ", ") ended with exit code 3 at ", "  | words\n",
                           "the others ended after it: rank 0: killed by signal 15 (SIGTERM)",
                           "round 1 begins: 2 ranks on 1 node, 1 of 3 restarts used\n",
                           "round 2 begins: 2 ranks on 1 node, 2 of 3 restarts used\n"});
  EXPECT_LT(ran.took, far_too_long);
}

TEST(Rounds, RestartsThatAreUsedUpEndTheRunAsBefore) {
  for (const auto& [way, code] : {std::pair("exit 3", 3), std::pair("kill -9 $$", 128 + SIGKILL)}) {
    const test::TemporaryFolder folder;
    const Ran ran = run_agent(restarting(3, 2,
                                         says_where + all_come(3, folder.path().string()) +
                                             "[ $RANK = 1 ] && " + way + "; exec sleep 60"));
    EXPECT_EQ(ran.result.exit_code, code) << ran.error;
    ASSERT_TRUE(ran.result.cause);
    EXPECT_EQ(ran.result.cause->rank, 1);
    EXPECT_EQ(lines_of(ran.output).size(), 9U) << ran.output;
    expect_words(ran.error, {"2 of 2 restarts used\n", "no restart is left: 2 of 2 were used\n",
                             "rank 1 of 3 (pid ", "ranks 0, 2: killed by signal 15 (SIGTERM)\n"});
  }
}

// Each report covers its own round; in the last round, no failure is shared by several ranks. Both
// ranks print their line before either of them ends.
TEST(Rounds, AReportDoesNotRepeatThoseOfEarlierRounds) {
  const test::TemporaryFolder folder;
  const std::string said = folder.path().string() + "/said-$LOCKSTEP_ROUND-";
  const Ran ran = run_agent(restarting(
      2, 2,
      says_where + all_come(2, folder.path().string()) +
          "[ $LOCKSTEP_ROUND = 2 ] || echo \"12:00:00.000 [rank $RANK] error: the group failed: "
          "as in round $LOCKSTEP_ROUND\" >&2; : > " +
          said + "$RANK; [ $RANK = 0 ] && exec sleep 60; " + until("[ -e " + said + "0 ]") +
          "exit 3"));
  EXPECT_EQ(ran.result.exit_code, 3) << ran.error;
  const std::size_t second = ran.error.find("round 1 begins");
  const std::size_t third = ran.error.find("round 2 begins");
  ASSERT_NE(third, std::string::npos) << ran.error;
  expect_words(ran.error.substr(0, second), {"failed as shown above"});
  expect_words(ran.error.substr(second, third - second), {"failed as shown above"});
  EXPECT_EQ(ran.error.find("round 0", second), std::string::npos) << ran.error;
  EXPECT_EQ(ran.error.find("shown above", third), std::string::npos) << ran.error;
}

TEST(Rounds, TwoThatFailAtOnceAreOneRestart) {
  const Ran ran = run_agent(restarting(3, 1,
                                       "[ $LOCKSTEP_ROUND = 1 ] || [ $RANK = 0 ] || exit 5; [ "
                                       "$LOCKSTEP_ROUND = 1 ] || exec sleep 60"));
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  expect_words(ran.error, {"1 of 1 restarts used"});
}

// A rank that has succeeded is started again with the others.
TEST(Rounds, ARankThatWasDoneTakesPartAgain) {
  const test::TemporaryFolder folder;
  const Ran ran = run_agent(restarting(
      2, 1,
      says_where + all_come(2, folder.path().string()) +
          "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $RANK = 0 ] && exit 0; sleep 0.3; exit 1"));
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  EXPECT_EQ(lines_of(ran.output).size(), 4U) << ran.output;
}

TEST(Rounds, EachRoundHasAPlaceOfItsOwn) {
  const Ran ran =
      run_agent(restarting(1, 2, "echo $MASTER_PORT; [ $LOCKSTEP_ROUND = 2 ] || exit 1"));
  const auto ports = lines_of(ran.output);
  EXPECT_EQ(std::set(ports.begin(), ports.end()).size(), 3U) << ran.output;
  const test::TemporaryFolder folder;
  const Ran names =
      run_agent(restarting(2, 1,
                           "echo $LOCKSTEP_WORKER; " + all_come(2, folder.path().string()) +
                               "[ $LOCKSTEP_ROUND = 1 ] && exit 0; exit 1"));
  EXPECT_EQ(lines_of(names.output), (std::multiset<std::string>{"0.0", "0.1", "0.2", "0.3"}));
}

TEST(Rounds, WithoutThemNothingSaysThatThereAreAny) {
  const Ran ran = run_agent(shells(1, "echo [$LOCKSTEP_ROUND$LOCKSTEP_WORKER]"));
  EXPECT_EQ(ran.output, "[rank 0] []\n");
}

TEST(Rounds, WhatAWorkerLeavesBehindDoesNotMeetTheNextOnes) {
  const test::TemporaryFolder folder;
  WorkerSpec spec = restarting(
      1, 1,
      "if [ $LOCKSTEP_ROUND = 1 ]; then kill -0 $(cat $0/pid) 2>/dev/null && echo alive; exit 0; "
      "fi; setsid sleep 77 & echo $! > $0/pid; exit 1");
  spec.arguments.push_back(folder.path().string());
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.output, "") << ran.error;
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
}

TEST(Rounds, ARankThatDoesNotAnswerToSigtermIsKilled) {
  const test::TemporaryFolder folder;
  WorkerSpec spec = restarting(2, 1,
                               "[ $LOCKSTEP_ROUND = 1 ] && exit 0; trap '' TERM; " +
                                   all_come(2, folder.path().string()) +
                                   "[ $RANK = 1 ] && exit 1; while :; do sleep 1; done");
  spec.failure_grace = 300ms;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  expect_words(ran.error, {"rank 0: killed by signal 9 (SIGKILL)"});
}

TEST(Rounds, ARequestToStopEndsTheRunAndNoRoundFollows) {
  WorkerSpec spec = restarting(2, 5, "[ $RANK = 0 ] && kill -TERM $PPID; exec sleep 60");
  spec.forward_signals = true;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 128 + SIGTERM) << ran.error;
  EXPECT_EQ(ran.error.find("begins"), std::string::npos) << ran.error;
  EXPECT_LT(ran.took, far_too_long);
}

TEST(Rounds, LogsGoOn) {
  const test::TemporaryFolder folder;
  WorkerSpec spec = restarting(1, 1, "echo round $LOCKSTEP_ROUND; exit $((1 - LOCKSTEP_ROUND))");
  spec.log_folder = folder.path().string();
  EXPECT_EQ(run_agent(spec).result.exit_code, 0);
  std::ifstream log(folder / "rank-0.log");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(log), {}), "round 0\nround 1\n");
}

TEST(Rounds, ALogThatCannotBeOpenedAgainDoesNotEndTheRun) {
  const test::TemporaryFolder folder;
  const std::string logs = folder / "logs";
  WorkerSpec spec =
      restarting(2, 1,
                 "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $RANK = 0 ] && exec sleep 60; rm -rf " +
                     logs + "; exit 1");
  spec.log_folder = logs;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  for (const char* name : {"/rank-0.log", "/rank-1.log"})
    expect_words(ran.error, {"cannot write " + logs + name +
                             ": No such file or directory; the rank continues without it\n"});
}

TEST(Rounds, AProgramThatIsMissingIsNoReasonToTryAgain) {
  WorkerSpec spec = restarting(1, 5, "");
  spec.program = "no-such-program";
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 127);
  EXPECT_EQ(lines_of(ran.error).size(), 1U) << ran.error;
}

// A rank that registers as if it had called init() and ends with the exit code in MODE.
TEST(RoundsProgram, DISABLED_JoinsAndEnds) {
  const std::string round = std::getenv("LOCKSTEP_ROUND");
  open_store(std::getenv("LOCKSTEP_STORE"), rank_env::read_secret(), 20s)
      ->add(std::string("lockstep/") + std::getenv("TORCHELASTIC_RUN_ID") + "/" + round +
                "/round/" + std::getenv("RANK"),
            1);
  std::_Exit(round == "3" ? 0 : std::stoi(std::getenv("MODE")));
}

WorkerSpec joining(const char* code) {
  WorkerSpec spec{.program = "/proc/self/exe",
                  .arguments = {"--gtest_filter=RoundsProgram.DISABLED_JoinsAndEnds",
                                "--gtest_also_run_disabled_tests", "--gtest_brief=1"},
                  .max_restarts = 5,
                  .input = StandardInput::none};
  spec.environment.erase("GTEST_OUTPUT");
  spec.environment.emplace("MODE", code);
  return spec;
}

TEST(Rounds, AnErrorOfUseIsNotTriedAgain) {
  const Ran ran = run_agent(restarting(2, 5, says_where + std::string("exit 2")));
  EXPECT_EQ(ran.result.exit_code, 2) << ran.error;
  for (const std::string& line : lines_of(ran.output)) EXPECT_EQ(line[0], '0') << ran.output;
  expect_words(ran.error, {"exit code 2 means wrong usage: the program is not restarted\n"});
  const Ran later = run_agent(joining("2"));
  EXPECT_EQ(later.result.exit_code, 0) << "behind init() it may be anything: " << later.error;
  expect_words(later.error, {"3 of 5 restarts used\n"});
}

TEST(Rounds, FailuresBeforeInitAreTriedAgainAfterAGrowingPause) {
  const Ran ran = run_agent(restarting(1, 3, "[ $LOCKSTEP_ROUND = 3 ] || exit 7"));
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  expect_words(ran.error, {"the program has failed 2 times in a row before init(): the next round "
                           "begins in 1s\n",
                           "round 2 begins",
                           "the program has failed 3 times in a row before init(): the next round "
                           "begins in 2s\n",
                           "round 3 begins"});
  EXPECT_GE(ran.took, 3s);
  EXPECT_EQ(run_agent(joining("7")).error.find("in a row"), std::string::npos);
}

TEST(Rounds, ARequestToStopIsHeardInAPause) {
  const Screen output, error;
  WorkerSpec spec = restarting(1, 20, "exit 7");
  spec.output = output.descriptor();
  spec.error = error.descriptor();
  Agent agent(spec);
  std::thread later([&] {
    const Deadline limit = Deadline::after(far_too_long);
    while (error.text().find("the next round begins in 8s") == std::string::npos && !limit.passed())
      std::this_thread::sleep_for(10ms);
    agent.deliver(SIGTERM);
  });
  EXPECT_EQ(agent.run().exit_code, 128 + SIGTERM) << error.text();
  later.join();
  EXPECT_EQ(error.text().find("round 5 begins"), std::string::npos) << error.text();
}

// In some of the trials, the signal comes after the join request for a round and before its plan.
TEST(Rounds, ARequestToStopIsHeardByTheRanksOfARoundThatIsAboutToBegin) {
  for (int trial = 0; trial < 20; ++trial) {
    const test::TemporaryFolder folder;
    const std::string stop = folder / "stop";
    const Screen output, error;
    WorkerSpec spec = restarting(1, 1'000'000, "[ -e " + stop + " ] && exec sleep 20; kill -9 $$");
    spec.output = output.descriptor();
    spec.error = error.descriptor();
    Agent agent(spec);
    std::thread later([&] {
      std::this_thread::sleep_for(100ms + trial * 3ms);
      std::ofstream(stop).flush();
      agent.deliver(SIGTERM);
    });
    const auto begin = Clock::now();
    EXPECT_NE(agent.run().exit_code, 0);
    EXPECT_LT(Clock::now() - begin, 10s) << error.text();
    later.join();
  }
}

TEST(Rounds, AStoppedWorkerHasHung) {
  WorkerSpec spec = restarting(
      2, 1, "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $RANK = 1 ] && kill -STOP $$; exec sleep 60");
  spec.hung_after = 1s;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  expect_words(ran.error, {"rank 1 of 2 (pid ",
                           ") was killed by the agent: it, or a process that it started, ",
                           "was stopped for 1s at "});
  EXPECT_LT(ran.took, far_too_long);

  spec.max_restarts = 0;
  EXPECT_EQ(run_agent(spec).result.exit_code, 128 + SIGKILL) << "without rounds too";
}

TEST(RoundsProgram, DISABLED_FailsForGood) {
  open_store(std::getenv("LOCKSTEP_STORE"), rank_env::read_secret(), 20s)
      ->set(std::string("lockstep-round/") + std::getenv("LOCKSTEP_ROUND") + "/final",
            "bad option");
  std::_Exit(6);
}

TEST(RoundsProgram, DISABLED_Survivor) {
  Survivor survivor;
  const int first = survivor.round;
  const std::string victim = std::getenv("VICTIM");
  for (;; survivor.wait_for_next()) {
    survivor.survive();
    survivor.say();
    if (survivor.round == 2) std::_Exit(0);
    if (survivor.rank() == 1 && first == survivor.round) {
      survivor.wait_for_survivors();
      if (victim == "stops") ::kill(::getpid(), SIGSTOP);
      ::kill(::getpid(), SIGKILL);
    }
  }
}

WorkerSpec of_this_program(const char* test, int ranks) {
  WorkerSpec spec = restarting(ranks, 5, "");
  spec.program = "/proc/self/exe";
  spec.arguments = {std::string("--gtest_filter=RoundsProgram.DISABLED_") + test,
                    "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
  spec.environment.erase("GTEST_OUTPUT");
  spec.environment.emplace("VICTIM", "dies");
  return spec;
}

std::set<std::string> said(const std::string& output) {
  std::set<std::string> lines;
  for (const std::string& line : lines_of(output))
    if (line.starts_with("says ")) lines.insert(line.substr(5));
  return lines;
}

TEST(Rounds, WorkersThatKeepThemselvesAreNotStartedAnew) {
  const Ran ran = run_agent(of_this_program("Survivor", 3));
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  EXPECT_EQ(said(ran.output),
            (std::set<std::string>{"0/0/0.0", "0/1/0.1", "0/2/0.2", "1/0/0.0", "1/1/0.3", "1/2/0.2",
                                   "2/0/0.0", "2/1/0.4", "2/2/0.2"}))
      << ran.error;
  EXPECT_EQ(ran.error.find("SIGTERM"), std::string::npos) << ran.error;
}

TEST(Rounds, AFailureThatNoRestartCanHelpEndsTheRun) {
  const Ran ran = run_agent(of_this_program("FailsForGood", 2));
  EXPECT_EQ(ran.result.exit_code, 6);
  EXPECT_EQ(ran.error.find("begins"), std::string::npos) << ran.error;
}

TEST(Rounds, ASurvivorThatDoesNotLeaveItsRoundIsReplaced) {
  WorkerSpec spec = of_this_program("Survivor", 3);
  spec.environment["VICTIM"] = "stops";
  spec.hung_after = 1s;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  EXPECT_TRUE(said(ran.output).contains("2/1/0.4")) << ran.output;
  expect_words(ran.error, {"was stopped for 1s"});
}

TEST(Rounds, AFailureWhenNoneIsLeftEndsSurvivorsToo) {
  WorkerSpec spec = of_this_program("Survivor", 3);
  spec.max_restarts = 1;
  spec.failure_grace = 2s;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 128 + SIGKILL) << ran.error;
  EXPECT_LT(ran.took, far_too_long);
}

// The shell that the agent started waits and is not stopped itself.
TEST(Rounds, AStoppedProcessBelowAWorkerIsAHang) {
  WorkerSpec spec = restarting(2, 1,
                               "[ $LOCKSTEP_ROUND = 1 ] && exit 0; [ $RANK = 0 ] && exec sleep 60; "
                               "sh -c 'kill -STOP $$' & wait; exit 1");
  spec.hung_after = 1s;
  const Ran ran = run_agent(spec);
  EXPECT_EQ(ran.result.exit_code, 0) << ran.error;
  expect_words(ran.error, {"rank 1 of 2", "was stopped for 1s"});
  EXPECT_LT(ran.took, far_too_long);
}

}  // namespace
}  // namespace lockstep::launch
