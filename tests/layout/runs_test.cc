#include "layout/transfers.h"

#include <lockstep/base/error.h>

#include "layout/boxes.h"

#include <gtest/gtest.h>

namespace lockstep::layout {
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
