#include "elastic/slot_layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace lockstep {
namespace {

using layout::Range;

TEST(SlotLayout, OfWholeParametersIsCutEvenly) {
  const SlotLayout all = SlotLayout::whole({5, 0, 3}, 2);
  EXPECT_EQ(all.length(), 5 + 3 + 3);
  EXPECT_EQ(all.counts(), std::vector<std::int64_t>{8});
  EXPECT_EQ(all.chunk(0), (Range{0, 5}));
  EXPECT_EQ(all.chunk(1), (Range{5, 11}));
  EXPECT_EQ(all.gradients(0), (Range{0, 5}));
  EXPECT_EQ(all.gradients(1), (Range{5, 8})) << "counts are not divided";
  const SlotLayout many = SlotLayout::whole({1}, 4);
  EXPECT_EQ(many.gradients(3).length(), 0);
}

TEST(SlotLayout, OfPartsGivesEachRankWhatItKeeps) {
  const SlotLayout all = SlotLayout::divided({{{0, 4}, {0, 1}}, {{4, 5}, {1, 1}}});
  EXPECT_EQ(all.length(), 4 + 1 + 2 + 1 + 2);
  EXPECT_EQ(all.chunk(0), (Range{0, 7}));
  EXPECT_EQ(all.chunk(1), (Range{7, 10}));
  EXPECT_EQ(all.gradients(0), (Range{0, 5}));
  EXPECT_EQ(all.gradients(1), (Range{7, 8}));
  EXPECT_EQ(all.counts(), (std::vector<std::int64_t>{5, 8}));
  std::vector<std::int64_t> covered(2);
  for (const auto& [entry, elements, offset] : all.pieces())
    covered[static_cast<std::size_t>(entry)] += elements.length();
  EXPECT_EQ(covered, (std::vector<std::int64_t>{5, 1}));
}

}  // namespace
}  // namespace lockstep
