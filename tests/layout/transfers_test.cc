#include "layout/transfers.h"
#include "layout/boxes.h"
#include "support/messages.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace lockstep::layout {
namespace {

std::vector<Range> cut(std::int64_t numel, int world) {
  std::vector<Range> ranges;
  for (int rank = 0; rank < world; ++rank) ranges.push_back(shard_range(numel, world, rank));
  return ranges;
}

TEST(Transfers, NameElementsThatNoRankHas) {
  std::vector<TensorSlice> rows = {range_slice(Sizes{2, 2}, {0, 2})},
                           all = {whole_slice(Sizes{2, 2})}, other = {whole_slice(Sizes{4})};
  test::expect_words(test::message_of<InvalidArgument>([&] { (void)transfers(rows, all); }),
                     {"[1, 0] + [1, 2]"});
  EXPECT_THROW((void)transfers(other, all), InvalidArgument);
}

// The elements of a slice, each as its row-major index in the whole tensor.
std::vector<std::int64_t> elements_of(const TensorSlice& slice) {
  std::vector<std::int64_t> elements(slice.numel(), -1);
  for (const Box& box : boxes_of(slice)) {
    Strided place = place_of(slice, box);
    for (std::int64_t element : test::indices_of(slice.sizes, box)) {
      std::int64_t rest = element, at = place.offset;
      for (std::size_t dim = slice.sizes.size(); dim-- > 0; rest /= slice.sizes[dim])
        at += (rest % slice.sizes[dim] - box.offsets[dim]) * place.strides[dim];
      elements.at(at) = element;
    }
  }
  return elements;
}

void expect_moved(const std::vector<TensorSlice>& from, const std::vector<TensorSlice>& to) {
  std::vector<std::vector<std::int64_t>> had, got;
  for (const TensorSlice& slice : from) had.push_back(elements_of(slice));
  for (const TensorSlice& slice : to) got.emplace_back(slice.numel(), -1);
  for (const BoxTransfer& copy : transfers(from, to)) {
    std::int64_t count = numel_of(copy.box);
    ASSERT_GT(count, 0);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t rest = i, source = copy.source.offset, destination = copy.destination.offset;
      for (std::size_t dim = copy.box.sizes.size(); dim-- > 0; rest /= copy.box.sizes[dim]) {
        source += rest % copy.box.sizes[dim] * copy.source.strides[dim];
        destination += rest % copy.box.sizes[dim] * copy.destination.strides[dim];
      }
      std::int64_t& element = got.at(copy.to).at(destination);
      ASSERT_EQ(element, -1) << "copied twice";
      element = had.at(copy.from).at(source);
    }
  }
  for (std::size_t rank = 0; rank < to.size(); ++rank) ASSERT_EQ(got[rank], elements_of(to[rank]));
}

std::vector<TensorSlice> slices_of(std::int64_t numel, const std::vector<Range>& ranges) {
  std::vector<TensorSlice> slices;
  for (Range range : ranges) slices.push_back(range_slice(Sizes{numel}, range));
  return slices;
}

// With replicated shards, and with overlapping shards in any order, each element is sent once, by
// the first rank that has it.
TEST(Transfers, TakeWhatSeveralRanksHaveFromTheFirst) {
  const auto thirds = slices_of(10, cut(10, 3));
  const auto twice = slices_of(10, {{0, 5}, {5, 10}, {0, 5}, {5, 10}});
  for (const BoxTransfer& copy : transfers(twice, thirds)) EXPECT_LT(copy.from, 2);
  expect_moved(twice, thirds);
  expect_moved(slices_of(10, {{6, 10}, {2, 7}, {0, 3}, {1, 9}}),
               slices_of(10, {{0, 10}, {3, 4}, {5, 5}}));
}

TEST(Transfers, CountBeyond32Bits) {
  for (std::int64_t numel : {(std::int64_t{1} << 33) + 7, (std::int64_t{1} << 45) + 1})
    for (int m : {1, 2, 3, 8})
      for (int n : {1, 5, 7}) {
        const std::vector<Range> from = cut(numel, m), to = cut(numel, n);
        std::vector<std::int64_t> next(n, 0);
        for (const BoxTransfer& copy : transfers(slices_of(numel, from), slices_of(numel, to))) {
          EXPECT_EQ(copy.destination.offset, next[copy.to]);
          next[copy.to] += numel_of(copy.box);
          EXPECT_EQ(from[copy.from].begin + copy.source.offset, copy.box.offsets[0]);
          EXPECT_EQ(to[copy.to].begin + copy.destination.offset, copy.box.offsets[0]);
        }
        for (int rank = 0; rank < n; ++rank) EXPECT_EQ(next[rank], to[rank].length());
      }
}

// The ways to distribute a tensor over ranks: replicated, as flat memory in either order of two
// dims, sharded along a dim, or sharded along a dim and then as flat memory.
std::vector<std::vector<TensorSlice>> ways_to_cut(const Sizes& sizes, int world) {
  std::vector<std::vector<TensorSlice>> ways;
  ways.emplace_back(world, whole_slice(sizes));
  for (const std::vector<int>& order : {std::vector<int>{0, 1}, {1, 0}}) {
    ways.emplace_back();
    for (Range range : cut(numel_of(sizes), world))
      ways.back().push_back(range_slice(sizes, range, order));
  }
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    std::vector<TensorSlice> boxes, halves;
    for (Range range : cut(sizes[dim], world)) {
      Box box = box_of(sizes);
      box.offsets[dim] = range.begin;
      box.sizes[dim] = range.length();
      boxes.push_back(box_slice(sizes, box));
      for (Range half : cut(boxes.back().numel(), 2)) {
        halves.push_back(boxes.back());
        halves.back().range = half;
      }
    }
    ways.push_back(std::move(boxes));
    ways.push_back(std::move(halves));
  }
  return ways;
}

TEST(Transfers, MoveTensorsFromEveryWayToEveryOther) {
  for (const Sizes& sizes : {Sizes{0, 3}, {1, 1}, {3, 5}, {4, 6}, {7, 2}})
    for (int m = 1; m <= 4; ++m)
      for (int n = 1; n <= 4; ++n)
        for (const auto& from : ways_to_cut(sizes, m))
          for (const auto& to : ways_to_cut(sizes, n)) {
            expect_moved(from, to);
            if (HasFatalFailure()) FAIL() << sizes[0] << "x" << sizes[1] << " " << m << " " << n;
          }
}

TEST(Transfers, MoveScalarsAndTensorsOfManyDims) {
  expect_moved({range_slice(Sizes{}, {0, 0}), range_slice(Sizes{}, {0, 1})},
               std::vector<TensorSlice>(2, whole_slice(Sizes{})));
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Sizes sizes;
    for (std::size_t dims = random() % 5; sizes.size() < dims;) sizes.push_back(random() % 5);
    auto cut_at_random = [&] {
      std::vector<TensorSlice> slices;
      std::vector<int> order(sizes.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (Range range : cut(numel_of(sizes), 1 + static_cast<int>(random() % 6)))
        slices.push_back(range_slice(sizes, range, order));
      return slices;
    };
    expect_moved(cut_at_random(), cut_at_random());
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
namespace {

using test::all_boxes;
using test::all_sizes;
using test::indices_of;

// The runs are in order, cover the box, are contiguous and not longer than the limit.
TEST(Runs, AreTheBoxPieceByPiece) {
  for (const Sizes& sizes : all_sizes(3, 3))
    for (const Box& box : all_boxes(sizes))
      for (std::int64_t most : {1, 2, 3, 4, 100}) {
        std::set<std::int64_t> found;
        std::int64_t behind_the_last = 0;
        for_each_run(box, sizes, most, [&](const Box& run) {
          std::set<std::int64_t> elements = indices_of(sizes, run);
          ASSERT_FALSE(elements.empty());
          ASSERT_LE(std::ssize(elements), most);
          ASSERT_EQ(*elements.rbegin() - *elements.begin() + 1, std::ssize(elements));
          ASSERT_EQ(first_element(run, sizes), *elements.begin());
          ASSERT_GE(*elements.begin(), behind_the_last);
          behind_the_last = *elements.rbegin() + 1;
          found.merge(elements);
        });
        ASSERT_EQ(found, indices_of(sizes, box)) << describe(box) << " of " << most;
      }
}

std::vector<Box> runs_of(const Box& box, const Sizes& sizes, std::int64_t most) {
  std::vector<Box> runs;
  for_each_run(box, sizes, most, [&](const Box& run) { runs.push_back(run); });
  return runs;
}

TEST(Runs, AreAsLongAsRowsThatFollowEachOther) {
  EXPECT_EQ(runs_of(box_of(Sizes{4, 6}), {4, 6}, 100), (std::vector<Box>{{{0, 0}, {4, 6}}}));
  EXPECT_EQ(runs_of(box_of(Sizes{4, 6}), {4, 6}, 20),
            (std::vector<Box>{{{0, 0}, {3, 6}}, {{3, 0}, {1, 6}}}));
  EXPECT_EQ(runs_of({{1, 2}, {2, 3}}, {4, 6}, 100),
            (std::vector<Box>{{{1, 2}, {1, 3}}, {{2, 2}, {1, 3}}}));
}

TEST(Runs, LieInTheirTensor) {
  auto ignore = [](const Box&) {};
  EXPECT_THROW(for_each_run({{3}, {2}}, Sizes{4}, 10, ignore), InvalidArgument);
  EXPECT_THROW(for_each_run({{0}, {2}}, Sizes{4}, 0, ignore), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::layout
