#include <lockstep/layout/tensor_slice.h>

#include <lockstep/base/error.h>

#include "layout/boxes.h"

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
}  // namespace lockstep::layout
