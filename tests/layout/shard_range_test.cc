#include <lockstep/base/error.h>
#include <lockstep/layout/tensor_slice.h>

#include <gtest/gtest.h>

#include <numeric>

namespace lockstep::layout {
namespace {

TEST(ShardRange, CoversEveryElementOnceForEverySizeAndWorld) {
  for (int world = 1; world <= 9; ++world) {
    for (std::int64_t numel = 0; numel <= 40; ++numel) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        Range range = shard_range(numel, world, rank);
        EXPECT_EQ(range.begin, next) << numel << " elements, rank " << rank << " of " << world;
        for (std::int64_t element = range.begin; element < range.end; ++element)
          EXPECT_EQ(owner_of(element, numel, world), rank);
        next = range.end;
      }
      EXPECT_EQ(next, numel);
    }
  }
}

// Lengths near and above 2^31, at the ends of every shard.
TEST(ShardRange, CoversMoreThan32BitsCount) {
  for (std::int64_t numel : {(std::int64_t{1} << 31) - 1, std::int64_t{1} << 31,
                             (std::int64_t{1} << 33) + 5, (std::int64_t{1} << 50) + 1})
    for (int world : {1, 2, 3, 5, 8, 1024}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        Range range = shard_range(numel, world, rank);
        ASSERT_EQ(range.begin, next);
        next = range.end;
        if (range.empty()) continue;
        EXPECT_EQ(owner_of(range.begin, numel, world), rank);
        EXPECT_EQ(owner_of(range.end - 1, numel, world), rank);
      }
      EXPECT_EQ(next, numel);
    }
}

TEST(ShardRange, IsTheCutOfTorchChunk) {
  EXPECT_EQ(shard_counts(10, 4), (std::vector<std::int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(shard_counts(4, 3), (std::vector<std::int64_t>{2, 2, 0}));
  EXPECT_EQ(shard_counts(0, 2), (std::vector<std::int64_t>{0, 0}));
}

TEST(ShardRange, ShardsOfAMultipleAreEqual) {
  for (int world = 1; world <= 9; ++world)
    for (std::int64_t count : shard_counts(round_up(1001, world), world))
      EXPECT_EQ(count, round_up(1001, world) / world);
}

TEST(ShardRange, RoundsUp) {
  EXPECT_EQ(round_up(0, 16), 0);
  EXPECT_EQ(round_up(1, 16), 16);
  EXPECT_EQ(round_up(16, 16), 16);
  EXPECT_EQ(round_up(17, 1), 17);
}

TEST(ShardRange, IntersectsRanges) {
  EXPECT_EQ(intersect({2, 8}, {4, 20}), (Range{4, 8}));
  EXPECT_EQ(intersect({2, 8}, {0, 3}), (Range{2, 3}));
  EXPECT_TRUE(intersect({2, 8}, {8, 9}).empty());
  EXPECT_TRUE(intersect({2, 8}, {0, 2}).empty());
  EXPECT_TRUE(intersect({5, 5}, {0, 9}).empty());
}

TEST(ShardRange, RefusesRanksAndSizesThatDoNotExist) {
  EXPECT_THROW((void)shard_range(4, 2, 2), InvalidArgument);
  EXPECT_THROW((void)shard_range(4, 0, 0), InvalidArgument);
  EXPECT_THROW((void)shard_range(-1, 2, 0), InvalidArgument);
  EXPECT_THROW((void)owner_of(4, 4, 2), InvalidArgument);
  EXPECT_THROW((void)round_up(4, 0), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::layout
