#include "launch/beats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

struct BeatsTest : testing::Test {
  // Looks every second for `seconds`; nodes above 0 beat but for the silent ones.
  std::optional<int> look(int seconds, const std::vector<int>& silent) {
    for (int i = 0; i < seconds; ++i, now += 1s) {
      for (int node = 1; node < 4; ++node) {
        if (std::ranges::find(silent, node) == silent.end()) ++counts[node];
        beats.note(node, std::to_string(counts[node]), now);
      }
      if (const auto lost = beats.lost(now)) return lost;
    }
    return std::nullopt;
  }

  Beats beats{4, 5s, 2s};
  Beats::Time now{};
  int counts[4] = {};
};

TEST_F(BeatsTest, ASilentNodeIsLostOnce) {
  EXPECT_EQ(look(20, {}), std::nullopt);
  EXPECT_EQ(look(4, {2}), std::nullopt);
  EXPECT_EQ(look(1, {}), std::nullopt) << "one beat is enough";
  EXPECT_EQ(look(4, {2}), std::nullopt);
  EXPECT_EQ(look(1, {2}), 2);
  EXPECT_EQ(look(20, {2}), std::nullopt);
}

TEST_F(BeatsTest, OneThatNeverBeatIsLostToo) { EXPECT_EQ(look(20, {1}), 1); }

TEST_F(BeatsTest, SeveralAreNamedOneAfterTheOther) {
  EXPECT_EQ(look(20, {1, 3}), 1);
  EXPECT_EQ(look(1, {1, 3}), 3);
}

TEST_F(BeatsTest, APauseOfTheObserverIsNobodysSilence) {
  EXPECT_EQ(look(3, {}), std::nullopt);
  now += 100s;
  EXPECT_EQ(look(5, {2}), std::nullopt);
  EXPECT_EQ(look(2, {2}), 2);
}

}  // namespace
}  // namespace lockstep::launch
