#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include <unistd.h>

#include "launch/agent.h"
#include "launch/descendants.h"
#include "launch/run_agent.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// Processes write their numbers into a folder, as files; the tests look whether they still live.
class Witnesses {
 public:
  // Shell words with which a process signs in.
  [[nodiscard]] std::string sign() const { return "touch " + folder_.path().string() + "/$$"; }
  [[nodiscard]] std::vector<pid_t> signed_in() const {
    std::vector<pid_t> pids;
    for (const auto& file : std::filesystem::directory_iterator(folder_.path()))
      pids.push_back(std::stoi(file.path().filename().string()));
    return pids;
  }
  // Zombies do not live: orphans are collected by init, when it comes to it.
  [[nodiscard]] std::vector<pid_t> living() const {
    std::vector<pid_t> pids = signed_in();
    std::erase_if(pids, [](pid_t pid) {
      std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
      std::string text;
      std::getline(stat, text);
      return text.empty() || text.find(") Z ") != std::string::npos;
    });
    return pids;
  }
  // Until that many have signed in.
  void await(std::size_t count) const {
    const Deadline limit = Deadline::after(20s);
    while (signed_in().size() < count && !limit.passed()) std::this_thread::sleep_for(5ms);
    EXPECT_EQ(signed_in().size(), count);
  }

 private:
  test::TemporaryFolder folder_;
};

TEST(AgentLeftovers, BackgroundChildrenAreEnded) {
  const Witnesses witnesses;
  const Ran ran =
      run_agent(shells(2, "sh -c '" + witnesses.sign() + "; exec sleep 60' & sleep 0.2"));
  EXPECT_EQ(ran.result.exit_code, 0);
  EXPECT_EQ(witnesses.signed_in().size(), 2U);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

TEST(AgentLeftovers, AlsoThoseInSessionsOfTheirOwnThatIgnoreSigterm) {
  const Witnesses witnesses;
  const Ran ran =
      run_agent(shells(2, "setsid sh -c 'trap \"\" TERM; " + witnesses.sign() +
                              "; while :; do sleep 0.05; done' >/dev/null 2>&1 & sleep 0.2"));
  EXPECT_EQ(ran.result.exit_code, 0);
  EXPECT_EQ(witnesses.signed_in().size(), 2U);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

TEST(AgentLeftovers, OneThatHoldsTheOutputOpenDoesNotHoldTheAgent) {
  const Witnesses witnesses;
  const Ran ran = run_agent(
      shells(1, "setsid sh -c '" + witnesses.sign() + "; exec sleep 60' & sleep 0.2; echo done"));
  EXPECT_EQ(ran.output, "[rank 0] done\n");
  EXPECT_LT(ran.took, 10s);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

TEST(AgentLeftovers, ADaemonMayEndInOrder) {
  const test::TemporaryFolder folder;
  const std::string note = folder / "note";
  run_agent(shells(1, "setsid sh -c 'trap \"echo closed > " + note +
                          "; exit\" TERM; while :; do sleep 0.02; done' & sleep 0.2"));
  EXPECT_TRUE(std::filesystem::exists(note));
}

TEST(AgentLeftovers, AFailedRunLeavesNothingEither) {
  const Witnesses witnesses;
  run_agent(
      shells(3, witnesses.sign() + "; setsid sh -c '" + witnesses.sign() +
                    "; exec sleep 60' & sleep 0.2; [ $RANK = 1 ] && kill -9 $$; exec sleep 60"));
  EXPECT_EQ(witnesses.signed_in().size(), 6U);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

TEST(AgentLeftovers, ChildrenFromBeforeAreLeftAlone) {
  test::RankProcesses older(1, [](int) { ::pause(); });
  run_agent(shells(1, "true"));
  EXPECT_EQ(::kill(older.pid(0), 0), 0);
}

TEST(AgentLeftovers, OrphansAreCollectedWhileRanksRun) {
  // A rank that runs for 2.5 s and orphans a short-lived process at once; then it counts zombies
  // among its parent's children.
  const Ran ran = run_agent(
      shells(1, "(sh -c 'sleep 0.1' &); sleep 2.5; ps -o stat= --ppid $PPID | grep -c Z"));
  EXPECT_EQ(ran.output, "[rank 0] 0\n");
}

TEST(AgentLeftovers, RanksEndWithinASecondOfTheAgentsOwnDeath) {
  const Witnesses witnesses;
  test::RankProcesses agent(
      1, [&](int) { run_agent(shells(3, witnesses.sign() + "; while :; do sleep 0.05; done")); });
  witnesses.await(3);
  EXPECT_EQ(witnesses.living().size(), 3U);
  agent.kill(0, SIGKILL);
  const auto begin = Clock::now();
  while (!witnesses.living().empty() && Clock::now() - begin < 5s) std::this_thread::sleep_for(5ms);
  EXPECT_LT(Clock::now() - begin, 1s);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

TEST(AgentLeftovers, WithTheAgentAlsoEndsWhatRanksStartedAndWhatNeverCallsInit) {
  const Witnesses witnesses;
  const std::string forever = witnesses.sign() + "; while :; do sleep 0.05; done";
  test::RankProcesses agent(1, [&](int) {
    run_agent(shells(2, "setsid sh -c '" + forever + "' & (setsid sh -c '" + forever +
                            "' &) ; sh -c '" + forever + "'; true"));
  });
  witnesses.await(6);
  EXPECT_EQ(witnesses.living().size(), 6U);
  agent.kill(0, SIGKILL);
  const Deadline limit = Deadline::after(5s);
  while (!witnesses.living().empty() && !limit.passed()) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
  for (pid_t pid : witnesses.living()) ::kill(pid, SIGKILL);
}

TEST(AgentLeftovers, TheGuardLeavesOtherRunsAlone) {
  const Witnesses mine, others;
  const std::string forever = "; while :; do sleep 0.05; done";
  test::RankProcesses agents(2, [&](int agent) {
    run_agent(shells(1, "sh -c '" + (agent == 0 ? mine : others).sign() + forever + "'; true"));
  });
  mine.await(1);
  others.await(1);
  agents.kill(0, SIGKILL);
  const Deadline limit = Deadline::after(5s);
  while (!mine.living().empty() && !limit.passed()) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(mine.living(), std::vector<pid_t>{});
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(others.living().size(), 1U);
  agents.kill(1, SIGKILL);
  while (!others.living().empty() && !limit.passed()) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(others.living(), std::vector<pid_t>{});
}

TEST(Subreaper, FindsDescendantsOfDescendants) {
  Subreaper subreaper;
  test::RankProcesses family(1, [](int) {
    if (::fork() == 0) ::pause();
    ::pause();
  });
  const Deadline limit = Deadline::after(20s);
  while (subreaper.descendants().size() < 2 && !limit.passed()) std::this_thread::sleep_for(5ms);
  const std::vector<pid_t> found = subreaper.descendants();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found.front(), family.pid(0));
  EXPECT_EQ(subreaper.end_all(1s), 2);
  EXPECT_TRUE(subreaper.descendants().empty());
}

}  // namespace
}  // namespace lockstep::launch
