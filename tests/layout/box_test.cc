#include <lockstep/layout/tensor_slice.h>

#include <lockstep/base/error.h>

#include "layout/boxes.h"

#include <gtest/gtest.h>

namespace lockstep::layout {
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
}  // namespace lockstep::layout
