#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include <sys/prctl.h>
#include <unistd.h>

#include "launch/agent.h"
#include "launch/leftovers.h"
#include "launch/run_agent.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// Processes create files named after their pids; the tests check whether these processes are alive.
// Kills the processes that a failed test has left.
class Witnesses {
 public:
  Witnesses() = default;
  ~Witnesses() {
    for (pid_t pid : living()) ::kill(pid, SIGKILL);
  }
  Witnesses(const Witnesses&) = delete;
  Witnesses& operator=(const Witnesses&) = delete;

  // Shell command with which a process registers.
  [[nodiscard]] std::string sign() const { return "touch " + folder_.path().string() + "/$$"; }
  // Shell command that waits until `count` processes have registered.
  [[nodiscard]] std::string all(int count) const {
    return until_files(count, folder_.path().string());
  }
  [[nodiscard]] std::vector<pid_t> signed_in() const {
    std::vector<pid_t> pids;
    for (const auto& file : std::filesystem::directory_iterator(folder_.path()))
      pids.push_back(std::stoi(file.path().filename().string()));
    return pids;
  }
  // Zombies do not count: init reaps orphans at an unknown time.
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
  // Blocks until `count` processes have registered.
  void await(std::size_t count) const {
    const Deadline limit = Deadline::after(far_too_long);
    while (signed_in().size() < count && !limit.passed()) std::this_thread::sleep_for(5ms);
    EXPECT_EQ(signed_in().size(), count);
  }
  void await_the_end() const {
    const Deadline limit = Deadline::after(far_too_long);
    while (!living().empty() && !limit.passed()) std::this_thread::sleep_for(5ms);
    EXPECT_EQ(living(), std::vector<pid_t>{});
  }

 private:
  test::TemporaryFolder folder_;
};

TEST(AgentLeftovers, BackgroundChildrenAreEnded) {
  const Witnesses witnesses;
  const Ran ran =
      run_agent(shells(2, "sh -c '" + witnesses.sign() + "; exec sleep 60' & " + witnesses.all(2)));
  EXPECT_EQ(ran.result.exit_code, 0);
  EXPECT_EQ(witnesses.signed_in().size(), 2U);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

TEST(AgentLeftovers, AlsoThoseInSessionsOfTheirOwnThatIgnoreSigterm) {
  const Witnesses witnesses;
  const Ran ran = run_agent(shells(2, "setsid sh -c 'trap \"\" TERM; " + witnesses.sign() +
                                          "; while :; do sleep 0.05; done' >/dev/null 2>&1 & " +
                                          witnesses.all(2)));
  EXPECT_EQ(ran.result.exit_code, 0);
  EXPECT_EQ(witnesses.signed_in().size(), 2U);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

TEST(AgentLeftovers, OneThatHoldsTheOutputOpenDoesNotHoldTheAgent) {
  const Witnesses witnesses;
  const Ran ran = run_agent(shells(1, "setsid sh -c '" + witnesses.sign() + "; exec sleep 60' & " +
                                          witnesses.all(1) + "echo done"));
  EXPECT_EQ(ran.output, "[rank 0] done\n");
  EXPECT_LT(ran.took, far_too_long);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

// The daemon has one second; if a busy machine takes longer, the test tries again.
TEST(AgentLeftovers, ADaemonMayEndInOrder) {
  const test::TemporaryFolder folder;
  const std::string note = folder / "note";
  for (int i = 0; i < 5 && !std::filesystem::exists(note); ++i) {
    const std::string begun = folder / ("begun" + std::to_string(i));
    run_agent(shells(1, "setsid sh -c 'trap \"echo closed > " + note + "; exit\" TERM; touch " +
                            begun + "; while :; do sleep 0.02; done' & " +
                            until("[ -e " + begun + " ]")));
  }
  EXPECT_TRUE(std::filesystem::exists(note));
}

TEST(AgentLeftovers, AFailedRunLeavesNothingEither) {
  const Witnesses witnesses;
  run_agent(shells(3, witnesses.sign() + "; setsid sh -c '" + witnesses.sign() +
                          "; exec sleep 60' & " + witnesses.all(6) +
                          "[ $RANK = 1 ] && kill -9 $$; exec sleep 60"));
  EXPECT_EQ(witnesses.signed_in().size(), 6U);
  EXPECT_EQ(witnesses.living(), std::vector<pid_t>{});
}

TEST(AgentLeftovers, ChildrenFromBeforeAreLeftAlone) {
  test::RankProcesses older(1, [](int) { ::pause(); });
  run_agent(shells(1, "true"));
  EXPECT_EQ(::kill(older.pid(0), 0), 0);
}

TEST(AgentLeftovers, OrphansAreCollectedWhileRanksRun) {
  // The rank orphans a short-lived process and runs until its parent, the agent, has adopted and
  // reaped the orphan.
  const test::TemporaryFolder folder;
  const std::string pid = folder / "pid";
  const Ran ran = run_agent(shells(1, "(sh -c 'echo $$ > " + pid + ".part; mv " + pid + ".part " +
                                          pid + "; sleep 0.1' &); " + until("[ -e " + pid + " ]") +
                                          until("! kill -0 $(cat " + pid + ") 2>/dev/null") +
                                          "echo collected"));
  EXPECT_EQ(ran.output, "[rank 0] collected\n");
}

// The machine may be busy: one of five tries must be fast enough.
TEST(AgentLeftovers, RanksEndWithinASecondOfTheAgentsOwnDeath) {
  Duration shortest = Duration::max();
  for (int i = 0; i < 5 && shortest > 1s; ++i) {
    const Witnesses witnesses;
    test::RankProcesses agent(
        1, [&](int) { run_agent(shells(3, witnesses.sign() + "; while :; do sleep 0.05; done")); });
    witnesses.await(3);
    EXPECT_EQ(witnesses.living().size(), 3U);
    agent.kill(0, SIGKILL);
    const auto begin = Clock::now();
    witnesses.await_the_end();
    shortest = std::min<Duration>(shortest, Clock::now() - begin);
  }
  EXPECT_LE(shortest, 1s);
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
  witnesses.await_the_end();
}

TEST(AgentLeftovers, TheFolderOfErrorFilesGoesWithTheAgent) {
  const Witnesses witnesses;
  const test::TemporaryFolder temporary;
  test::RankProcesses agent(1, [&](int) {
    ::setenv("TMPDIR", temporary.path().c_str(), 1);
    run_agent(
        shells(2, "echo {} > $TORCHELASTIC_ERROR_FILE; " + witnesses.sign() + "; exec sleep 60"));
  });
  witnesses.await(2);
  EXPECT_FALSE(std::filesystem::is_empty(temporary.path()));
  agent.kill(0, SIGKILL);
  const Deadline limit = Deadline::after(far_too_long);
  while (!std::filesystem::is_empty(temporary.path()) && !limit.passed())
    std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
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
  mine.await_the_end();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(others.living().size(), 1U);
  agents.kill(1, SIGKILL);
  others.await_the_end();
}

TEST(Subreaper, FindsDescendantsOfDescendants) {
  Subreaper subreaper;
  test::RankProcesses family(1, [](int) {
    if (::fork() == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
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
