#include "layout/boxes.h"

#include <lockstep/base/error.h>
#include <lockstep/layout/tensor_slice.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace lockstep::layout {
namespace {

using test::all_boxes;
using test::all_sizes;
using test::indices_of;

// The row-major indices of a box's elements, sorted by `order`: the reference.
std::vector<std::int64_t> elements_in_order(const Sizes& sizes, const Box& box,
                                            const std::vector<int>& order) {
  std::set<std::int64_t> all = indices_of(sizes, box);
  std::vector<std::int64_t> elements(all.begin(), all.end());
  auto key = [&](std::int64_t element) {
    Sizes index(sizes.size()), sorted;
    for (std::size_t dim = sizes.size(); dim-- > 0; element /= sizes[dim])
      index[dim] = element % sizes[dim];
    for (int dim : order) sorted.push_back(index[static_cast<std::size_t>(dim)]);
    return sorted;
  };
  std::ranges::sort(elements, {}, key);
  return elements;
}

// Walks the boxes of a slice and checks that each element is at the position given by place_of().
void expect_elements(const TensorSlice& slice, const std::vector<std::int64_t>& expected) {
  std::vector<std::int64_t> found(expected.size(), -1);
  for (const Box& box : boxes_of(slice)) {
    ASSERT_TRUE(contains(slice.box, box));
    Strided place = place_of(slice, box);
    std::int64_t count = numel_of(box);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t rest = i, at = place.offset, element = 0, stride = 1;
      for (std::size_t dim = slice.sizes.size(); dim-- > 0; rest /= box.sizes[dim]) {
        std::int64_t index = rest % box.sizes[dim];
        at += index * place.strides[dim];
        element += (box.offsets[dim] + index) * stride;
        stride *= slice.sizes[dim];
      }
      ASSERT_TRUE(at >= 0 && at < static_cast<std::int64_t>(found.size()));
      ASSERT_EQ(found[static_cast<std::size_t>(at)], -1) << "two elements at one place";
      found[static_cast<std::size_t>(at)] = element;
    }
  }
  ASSERT_EQ(found, expected);
}

std::vector<std::vector<int>> all_orders(std::size_t dims) {
  std::vector<int> order(dims);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> all;
  do all.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  return all;
}

// Every range of every box of all tensors with up to three dims, in every order of dims.
TEST(TensorSlice, EveryElementIsWhereItIsSaidToBe) {
  for (const Sizes& sizes : all_sizes(3, 3))
    for (const Box& box : all_boxes(sizes))
      for (const std::vector<int>& order : all_orders(sizes.size())) {
        TensorSlice slice = box_slice(sizes, box);
        slice.dim_order = order;
        auto elements = elements_in_order(sizes, box, order);
        auto numel = static_cast<std::int64_t>(elements.size());
        for (std::int64_t begin = 0; begin <= numel; begin += begin < 4 ? 1 : 5)
          for (std::int64_t end = begin; end <= numel; end += end < 4 ? 1 : 3) {
            slice.range = {begin, end};
            expect_elements(slice, {elements.begin() + begin, elements.begin() + end});
            if (testing::Test::HasFatalFailure())
              FAIL() << describe(box) << " " << begin << ".." << end;
          }
      }
}

TEST(TensorSlice, IsMadeOfAWholeABoxOrARange) {
  Sizes sizes = {4, 6};
  TensorSlice whole = whole_slice(sizes);
  EXPECT_TRUE(whole.is_whole());
  EXPECT_EQ(boxes_of(whole), std::vector<Box>{box_of(sizes)});
  TensorSlice rows = range_slice(sizes, {6, 18});
  EXPECT_FALSE(rows.is_whole());
  EXPECT_EQ(boxes_of(rows), (std::vector<Box>{{{1, 0}, {2, 6}}}));
  TensorSlice columns = box_slice(sizes, {{0, 2}, {4, 3}});
  EXPECT_EQ(columns.numel(), 12);
  EXPECT_EQ(boxes_of(columns), (std::vector<Box>{{{0, 2}, {4, 3}}}));
  columns.range = {4, 9};  // a range within a column shard, as on a rank of the second cut
  EXPECT_EQ(boxes_of(columns), (std::vector<Box>{{{1, 3}, {1, 2}}, {{2, 2}, {1, 3}}}));
  EXPECT_TRUE(boxes_of(range_slice(sizes, {5, 5})).empty());
  EXPECT_EQ(boxes_of(whole_slice(Sizes{})).size(), 1U);
}

TEST(TensorSlice, RefusesWhatDoesNotLieInTheTensor) {
  Sizes sizes = {4, 6};
  EXPECT_THROW((void)range_slice(sizes, {0, 25}), InvalidArgument);
  EXPECT_THROW((void)range_slice(sizes, {-1, 2}), InvalidArgument);
  EXPECT_THROW((void)range_slice(sizes, {0, 2}, {0}), InvalidArgument);
  EXPECT_THROW((void)range_slice(sizes, {0, 2}, {1, 1}), InvalidArgument);
  EXPECT_THROW((void)box_slice(sizes, {{0, 4}, {4, 3}}), InvalidArgument);
  EXPECT_THROW((void)box_slice(sizes, {{0}, {4}}), InvalidArgument);
  EXPECT_THROW((void)box_slice(sizes, {{0, -1}, {4, 3}}), InvalidArgument);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW((void)box_slice(sizes, {{most, 0}, {most, 1}}), InvalidArgument);
}

}  // namespace
namespace {

using test::all_boxes;
using test::all_sizes;
using test::indices_of;

TEST(Box, CountsElements) {
  EXPECT_EQ(numel_of(Sizes{}), 1);
  EXPECT_EQ(numel_of(Sizes{3, 4}), 12);
  EXPECT_EQ(numel_of(Sizes{3, 0, 4}), 0);
  EXPECT_EQ(numel_of(Sizes{std::int64_t{1} << 40, std::int64_t{1} << 20}), std::int64_t{1} << 60);
  EXPECT_EQ(numel_of(Sizes{std::int64_t{1} << 40, std::int64_t{1} << 40, 0}), 0);
  EXPECT_THROW((void)numel_of(Sizes{std::int64_t{1} << 40, std::int64_t{1} << 40}),
               InvalidArgument);
  EXPECT_THROW((void)numel_of(Sizes{2, -1}), InvalidArgument);
  EXPECT_EQ(describe(Box{{1, 2}, {2, 3}}), "[1, 2] + [2, 3]");
}

// Every pair of boxes of all tensors with up to two dims of up to 4 and three dims of up to 2:
// their intersection and difference.
TEST(Box, IntersectsAndSubtractsEveryTwoBoxes) {
  std::vector<Sizes> tensors = all_sizes(2, 4);
  for (const Sizes& sizes : all_sizes(3, 2)) tensors.push_back(sizes);
  for (const Sizes& sizes : tensors) {
    std::vector<Box> boxes = all_boxes(sizes);
    for (const Box& a : boxes)
      for (const Box& b : boxes) {
        auto in_a = indices_of(sizes, a), in_b = indices_of(sizes, b);
        std::set<std::int64_t> both, only_a = in_a;
        for (std::int64_t index : in_b)
          if (only_a.erase(index) > 0) both.insert(index);
        ASSERT_EQ(indices_of(sizes, intersect(a, b)), both) << describe(a) << describe(b);
        ASSERT_EQ(intersect(a, b).empty(), both.empty());
        ASSERT_EQ(contains(a, b), both == in_b);
        std::vector<Box> rest = subtract(a, b);
        ASSERT_LE(rest.size(), 2 * sizes.size() + 1);
        std::size_t elements = 0;
        std::set<std::int64_t> found;
        for (const Box& box : rest) {
          ASSERT_FALSE(box.empty());
          found.merge(indices_of(sizes, box));
          elements += static_cast<std::size_t>(numel_of(box));
        }
        ASSERT_EQ(found, only_a) << describe(a) << describe(b);
        ASSERT_EQ(elements, only_a.size()) << "an element comes twice";
      }
  }
}

TEST(Box, RefusesBoxesOfOtherDims) {
  EXPECT_THROW((void)intersect({{0}, {1}}, {{0, 0}, {1, 1}}), InvalidArgument);
}

// Every range of all tensors with up to four dims.
TEST(Box, BoxesOfARangeHaveItsElementsInOrder) {
  for (const Sizes& sizes : all_sizes(4, 3)) {
    std::int64_t numel = numel_of(sizes);
    for (std::int64_t begin = 0; begin <= numel; ++begin)
      for (std::int64_t end = begin; end <= numel; ++end) {
        std::vector<Box> boxes = boxes_of(sizes, {begin, end});
        ASSERT_LE(boxes.size(), sizes.empty() ? 1 : 2 * sizes.size() - 1);
        std::int64_t next = begin;
        for (const Box& box : boxes)
          for (std::int64_t index : indices_of(sizes, box)) ASSERT_EQ(index, next++);
        ASSERT_EQ(next, end);
      }
  }
}

TEST(Box, BoxesOfARangeThatIs32BitsLong) {
  constexpr std::int64_t large = std::int64_t{1} << 33;
  Sizes sizes = {large, 3};
  EXPECT_EQ(boxes_of(sizes, {0, 3 * large}), std::vector<Box>{box_of(sizes)});
  EXPECT_EQ(
      boxes_of(sizes, {2, 3 * large - 1}),
      (std::vector<Box>{{{0, 2}, {1, 1}}, {{1, 0}, {large - 2, 3}}, {{large - 1, 0}, {1, 2}}}));
}

TEST(Box, RefusesRangesBeyondTheTensor) {
  EXPECT_THROW((void)boxes_of(Sizes{2, 3}, {0, 7}), InvalidArgument);
  EXPECT_THROW((void)boxes_of(Sizes{2, 3}, {-1, 3}), InvalidArgument);
  EXPECT_THROW((void)boxes_of(Sizes{2, 3}, {4, 3}), InvalidArgument);
}

}  // namespace
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
