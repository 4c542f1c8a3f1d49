#include "launch/heartbeat_monitor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

struct HeartbeatMonitorTest : testing::Test {
  // Looks every second for `seconds`; nodes above 0 heartbeat but for the silent ones.
  std::optional<int> look(int seconds, const std::vector<int>& silent) {
    for (int i = 0; i < seconds; ++i, now += 1s) {
      for (int node = 1; node < 4; ++node) {
        if (std::ranges::find(silent, node) == silent.end()) ++counts[node];
        heartbeats.note(node, std::to_string(counts[node]), now);
      }
      if (const auto lost = heartbeats.lost(now)) return lost;
    }
    return std::nullopt;
  }

  HeartbeatMonitor heartbeats{4, 5s, 2s};
  HeartbeatMonitor::Time now{};
  int counts[4] = {};
};

TEST_F(HeartbeatMonitorTest, ASilentNodeIsLostOnce) {
  EXPECT_EQ(look(20, {}), std::nullopt);
  EXPECT_EQ(look(4, {2}), std::nullopt);
  EXPECT_EQ(look(1, {}), std::nullopt) << "one heartbeat is enough";
  EXPECT_EQ(look(4, {2}), std::nullopt);
  EXPECT_EQ(look(1, {2}), 2);
  EXPECT_EQ(look(20, {2}), std::nullopt);
}

TEST_F(HeartbeatMonitorTest, OneThatHasComeBackMayBeLostAgain) {
  EXPECT_EQ(look(3, {}), std::nullopt);
  EXPECT_EQ(look(10, {2}), 2);
  EXPECT_EQ(look(10, {}), std::nullopt);
  EXPECT_EQ(look(10, {2}), 2);
}

TEST_F(HeartbeatMonitorTest, OneThatNeverBeatIsLostToo) { EXPECT_EQ(look(20, {1}), 1); }

TEST_F(HeartbeatMonitorTest, SeveralAreNamedOneAfterTheOther) {
  EXPECT_EQ(look(20, {1, 3}), 1);
  EXPECT_EQ(look(1, {1, 3}), 3);
}

TEST_F(HeartbeatMonitorTest, APauseOfTheObserverIsNobodysSilence) {
  EXPECT_EQ(look(3, {}), std::nullopt);
  now += 100s;
  EXPECT_EQ(look(5, {2}), std::nullopt);
  EXPECT_EQ(look(2, {2}), 2);
}

}  // namespace
}  // namespace lockstep::launch
