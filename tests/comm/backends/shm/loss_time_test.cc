// The other ranks detect a death within 50 ms, whether they are in an operation or not.
#include "comm/backends/shm/ranks.h"
#include "support/sanitizers.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Rank 0 kills rank 1, calls `learn` until its group has detected the loss, and returns the time
// that this took.
template <typename Learn>
Clock::duration time_to_learn(Endpoint& endpoint, const Learn& learn) {
  GroupMember& group = endpoint.world();
  std::vector<float> values(100'000, 1);
  run(group, call(Collective::all_reduce, values, values));
  if (group.rank() != 0) {
    std::this_thread::sleep_for(30s);  // until it is killed or the other ranks are gone
    return {};
  }
  std::this_thread::sleep_for(20ms);
  auto begin = Clock::now();
  kill(endpoint.peers().peer(1).pid, SIGKILL);
  learn(group);
  auto took = Clock::now() - begin;
  EXPECT_TRUE(group.has_failed());
  return took;
}

void look_at_flag(GroupMember& group) {
  for (auto begin = Clock::now(); !group.has_failed() && Clock::now() - begin < 5s;)
    std::this_thread::sleep_for(100us);
}

void wait_for_operation(GroupMember& group) {
  std::vector<float> values(100'000, 1);
  EXPECT_THROW(run(group, call(Collective::all_reduce, values, values)), PeerLost);
}

// The machine may be busy: only the median must be below `soon`, and every value below
// `much_later`.
template <typename Learn>
void expect_soon(int ranks, const Learn& learn) {
  constexpr int rounds = 7;
  constexpr auto soon = 50ms;
  constexpr auto much_later = 1s;
  if (under_sanitizer) GTEST_SKIP() << "a sanitizer delays the end of a process";
  int late = 0;
  for (int round = 0; round < rounds; ++round) {
    TemporaryFolder folder;
    RankProcesses processes(ranks, on_endpoint(folder, ranks, [&](Endpoint& endpoint) {
                              const auto took = time_to_learn(endpoint, learn);
                              EXPECT_LT(took, much_later);
                              _exit(testing::Test::HasFailure() ? 1 : took < soon ? 0 : 3);
                            }));
    auto result = processes.wait(0, 20s);
    ASSERT_TRUE(result.exit_code == 0 || result.exit_code == 3) << result;
    late += result.exit_code == 3;
    for (int rank = 1; rank < ranks; ++rank) processes.kill(rank, SIGKILL);
  }
  EXPECT_LE(late, rounds / 2) << "of " << rounds;
}

TEST(LossTime, IsShortWhileNobodyWaits) { expect_soon(3, look_at_flag); }
TEST(LossTime, IsShortForWhoWaits) { expect_soon(3, wait_for_operation); }

}  // namespace
}  // namespace lockstep::test
