#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "launch/agent.h"
#include "launch/run_agent.h"
#include "launch/signals.h"
#include "support/processes.h"
#include "sys/process.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// Runs the agent and, once every rank has printed "ready", calls user(agent, over), which may
// continue until the run has ended.
template <typename User>
Ran run_with(WorkerSpec spec, User user) {
  const Screen output, error;
  spec.output = output.descriptor();
  spec.error = error.descriptor();
  const int ranks = spec.ranks;
  Agent agent(std::move(spec));
  std::atomic<bool> over = false;
  std::thread other([&] {
    const Deadline limit = Deadline::after(far_too_long);
    auto ready = [&] {
      const std::string text = output.text();
      int count = 0;
      for (std::size_t at = 0; (at = text.find("ready\n", at)) != std::string::npos; ++at) ++count;
      return count == ranks;
    };
    while (!ready() && !limit.passed()) std::this_thread::sleep_for(5ms);
    user(agent, over);
  });
  const auto begin = Clock::now();
  Ran ran{.result = agent.run(), .output = {}, .error = {}};
  over = true;
  other.join();
  ran.took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  ran.output = output.text();
  ran.error = error.text();
  return ran;
}

constexpr const char* sleeps = "echo ready; exec sleep 60";

TEST(AgentSignals, ArePassedToAllRanks) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Ran ran =
        run_with(shells(3, sleeps), [&](Agent& agent, const auto&) { agent.deliver(signal); });
    EXPECT_EQ(ran.result.exit_code, 128 + signal);
    EXPECT_EQ(ran.error, "lockstep run: stopped by " + sys::signal_name(signal) + "; ranks 0-2: " +
                             sys::describe(sys::ExitStatus{.signal = signal}) + "\n");
  }
}

TEST(AgentSignals, AnInheritedIgnoredSigchldChangesNothing) {
  for (const bool by_flag : {false, true}) {
    test::expect_ranks(1, [&](int) {
      struct sigaction discard = {};
      discard.sa_handler = by_flag ? SIG_DFL : SIG_IGN;
      discard.sa_flags = by_flag ? SA_NOCLDWAIT : 0;
      ::sigaction(SIGCHLD, &discard, nullptr);
      const Ran ran = run_agent(shells(2, "[ $RANK = 1 ] && exit 3; exec sleep 60"));
      EXPECT_EQ(ran.result.exit_code, 3) << ran.error;
      EXPECT_EQ(run_agent(shells(2, "true")).result.exit_code, 0);
      struct sigaction after = {};
      ::sigaction(SIGCHLD, nullptr, &after);
      EXPECT_EQ(after.sa_handler, discard.sa_handler);
      EXPECT_EQ(after.sa_flags & SA_NOCLDWAIT, discard.sa_flags);
    });
  }
}

TEST(AgentSignals, RanksMayEndInOrder) {
  const Ran ran =
      run_with(shells(2, "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.02; done"),
               [](Agent& agent, const auto&) { agent.deliver(SIGINT); });
  EXPECT_EQ(ran.result.exit_code, 0);
  EXPECT_NE(ran.output.find("[rank 0] saved\n"), std::string::npos);
  EXPECT_NE(ran.output.find("[rank 1] saved\n"), std::string::npos);
  EXPECT_EQ(ran.error, "");
}

TEST(AgentSignals, ChildrenOfRanksGetThemToo) {
  // The shell does not forward signals, so its child must get the signal directly.
  const Ran ran = run_with(
      shells(1,
             "trap 'wait; exit 0' TERM; "
             "(trap 'echo child; exit 0' TERM; echo ready; while :; do sleep 0.02; done) & wait"),
      [](Agent& agent, const auto&) { agent.deliver(SIGTERM); });
  EXPECT_NE(ran.output.find("[rank 0] child\n"), std::string::npos) << ran.output;
}

TEST(AgentSignals, SigkillFollowsAfterTheGracePeriod) {
  WorkerSpec spec = shells(2, "trap '' TERM; echo ready; while :; do sleep 0.02; done");
  spec.grace = 300ms;
  const Ran ran = run_with(spec, [](Agent& agent, const auto&) { agent.deliver(SIGTERM); });
  EXPECT_EQ(ran.result.exit_code, 128 + SIGTERM);
  EXPECT_NE(ran.error.find("ranks 0, 1: killed by signal 9 (SIGKILL)"), std::string::npos)
      << ran.error;
  EXPECT_GE(ran.took, 300ms);
}

// If a delayed agent finds two signals together, they count as one, like the echo of `timeout -s
// INT`: then another one is necessary.
TEST(AgentSignals, ASecondSigintKillsAtOnce) {
  WorkerSpec spec = shells(2, "trap '' INT; echo ready; while :; do sleep 0.02; done");
  spec.grace = 2 * far_too_long;
  const Ran ran = run_with(spec, [](Agent& agent, const std::atomic<bool>& over) {
    while (!over) {
      agent.deliver(SIGINT);
      std::this_thread::sleep_for(400ms);
    }
  });
  EXPECT_EQ(ran.result.exit_code, 128 + SIGINT);
  EXPECT_LT(ran.took, far_too_long);
}

TEST(AgentSignals, UserSignalsReachTheRanksAndEndNothing) {
  const Ran ran = run_with(
      shells(2, "trap 'echo saved; exit 7' USR1; echo ready; while :; do sleep 0.02; done"),
      [](Agent& agent, const auto&) { agent.deliver(SIGUSR1); });
  EXPECT_EQ(ran.result.exit_code, 7);
  EXPECT_NE(ran.output.find("saved"), std::string::npos);
}

TEST(AgentSignals, OneDeliveredBeforeTheStartCounts) {
  const Screen output, error;
  WorkerSpec spec = shells(2, "exec sleep 60");
  spec.output = output.descriptor();
  spec.error = error.descriptor();
  Agent agent(spec);
  agent.deliver(SIGTERM);
  EXPECT_EQ(agent.run().exit_code, 128 + SIGTERM);
}

TEST(SignalQueue, HoldsSignalsAndRestoresTheMask) {
  sigset_t before, after;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &before);
  {
    SignalQueue queue;
    EXPECT_TRUE(queue.take().empty());
    ::raise(SIGUSR1);
    ::raise(SIGTERM);
    const std::vector<int> taken = queue.take();
    EXPECT_EQ(std::set<int>(taken.begin(), taken.end()), (std::set<int>{SIGUSR1, SIGTERM}));
  }
  ::pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal)
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
}

TEST(SignalQueue, TakesInterruptsThatScriptsIgnoreForTheirBackgroundJobs) {
  const auto handler = ::signal(SIGINT, SIG_IGN);
  {
    SignalQueue queue;
    ::raise(SIGINT);
    EXPECT_EQ(queue.take(), std::vector<int>{SIGINT});
  }
  ::signal(SIGINT, handler);
}

TEST(SignalQueue, LeavesIgnoredHangupsIgnored) {
  const auto handler = ::signal(SIGHUP, SIG_IGN);
  {
    SignalQueue queue;
    ::raise(SIGHUP);
    EXPECT_TRUE(queue.take().empty());
  }
  ::signal(SIGHUP, handler);
}

}  // namespace
}  // namespace lockstep::launch
