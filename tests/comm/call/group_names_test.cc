#include "comm/call/group_names.h"

#include <gtest/gtest.h>

#include <vector>

using namespace lockstep;

namespace {

TEST(GroupNames, OfTheWorldAreItsRanks) {
  const GroupNames world;
  const std::vector<int> ranks{0, 1, 2, 5};
  EXPECT_EQ(world.rank(3), "rank 3");
  EXPECT_EQ(world.ranks_own(3), "rank 3's");
  EXPECT_EQ(world.ranks(ranks), "ranks 0-2, 5");
  EXPECT_EQ(world.ending(), "");
}

TEST(GroupNames, OfPartsOfPartsHaveTheWorldsRanks) {
  const std::vector<int> odd{1, 3, 5, 7}, last{3, 2}, all{0, 1}, first{0};
  const GroupNames half = GroupNames().part(odd, "odd");
  const GroupNames pair = half.part(last, "odd/last");
  EXPECT_EQ(half.rank(1), "rank 1 (rank 3 of the world)");
  EXPECT_EQ(pair.rank(0), "rank 0 (rank 7 of the world)");
  EXPECT_EQ(pair.ranks_own(1), "rank 1's (rank 5 of the world)");
  EXPECT_EQ(pair.ranks(all), "ranks 0, 1 (ranks 7, 5 of the world)");
  EXPECT_EQ(pair.ending(), " [group odd/last]");
  EXPECT_EQ(half.part(first, "one").rank(0), "rank 0 (rank 1 of the world)");
}

// Text from a peer may name a rank that does not exist.
TEST(GroupNames, KnowNothingOfRanksThatAreNotOfTheGroup) {
  const GroupNames pair("pair", {4, 5});
  EXPECT_EQ(pair.rank(2), "rank 2");
  EXPECT_EQ(pair.rank(-1), "rank -1");
}

}  // namespace
