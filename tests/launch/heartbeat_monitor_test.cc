#include "launch/heartbeat_monitor.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

struct HeartbeatMonitorTest : testing::Test {
  // Checks once per second for `seconds`; returns how often the process was considered lost.
  int look(int seconds, bool beats) {
    int lost = 0;
    for (int i = 0; i < seconds; ++i, now += 1s) {
      if (beats) ++count;
      monitor.note(std::to_string(count), now);
      lost += monitor.lost(now);
    }
    return lost;
  }

  HeartbeatMonitor monitor{5s, 2s};
  HeartbeatMonitor::Time now{};
  int count = 0;
};

TEST_F(HeartbeatMonitorTest, ASilentProcessIsLostOnce) {
  EXPECT_EQ(look(20, true), 0);
  EXPECT_EQ(look(4, false), 0);
  EXPECT_EQ(look(1, true), 0) << "one heartbeat is enough";
  EXPECT_EQ(look(4, false), 0);
  EXPECT_EQ(look(1, false), 1);
  EXPECT_EQ(look(20, false), 0);
}

TEST_F(HeartbeatMonitorTest, OneThatHasComeBackMayBeLostAgain) {
  EXPECT_EQ(look(3, true), 0);
  EXPECT_EQ(look(10, false), 1);
  EXPECT_EQ(look(10, true), 0);
  EXPECT_EQ(look(10, false), 1);
}

TEST_F(HeartbeatMonitorTest, OneThatNeverBeatIsLostToo) { EXPECT_EQ(look(20, false), 1); }

TEST_F(HeartbeatMonitorTest, APauseOfTheObserverIsNobodysSilence) {
  EXPECT_EQ(look(3, true), 0);
  now += 100s;
  EXPECT_EQ(look(5, false), 0);
  EXPECT_EQ(look(2, false), 1);
}

}  // namespace
}  // namespace lockstep::launch
