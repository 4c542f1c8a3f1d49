#include "elastic/slot_layout.h"

#include <lockstep/elastic/slot_gradients.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
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

// Returns how a node is summed: "((0 1) (2 3))".
std::string shape_of(Range node) {
  if (node.end - node.begin == 1) return std::to_string(node.begin);
  const std::int64_t middle = split_of(node);
  return "(" + shape_of({node.begin, middle}) + " " + shape_of({middle, node.end}) + ")";
}

TEST(SlotTree, IsSplitAtTheLargestPowerOfTwoBelowItsSize) {
  EXPECT_EQ(shape_of({0, 2}), "(0 1)");
  EXPECT_EQ(shape_of({0, 3}), "((0 1) 2)");
  EXPECT_EQ(shape_of({0, 6}), "(((0 1) (2 3)) (4 5))");
  EXPECT_EQ(shape_of({0, 8}), "(((0 1) (2 3)) ((4 5) (6 7)))");
}

TEST(SlotTree, RanksHaveContiguousSlotsThatDifferByOneAtMost) {
  for (std::int64_t slots = 1; slots <= 17; ++slots)
    for (int ranks = 1; ranks <= 20; ++ranks) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range own = slots_of_rank(slots, rank, ranks);
        EXPECT_EQ(own.begin, next);
        EXPECT_GE(own.length(), slots / ranks);
        EXPECT_LE(own.length(), (slots + ranks - 1) / ranks);
        next = own.end;
      }
      EXPECT_EQ(next, slots);
    }
}

TEST(SlotTree, NodesOfAllRanksAreNodesOfTheTreeAndCoverIt) {
  for (std::int64_t slots = 1; slots <= 17; ++slots)
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank)
        for (const Range node : nodes_within(slots, slots_of_rank(slots, rank, ranks))) {
          EXPECT_TRUE(is_node(slots, node)) << slots << " " << node.begin << " " << node.end;
          EXPECT_EQ(node.begin, next);
          next = node.end;
        }
      EXPECT_EQ(next, slots);
    }
  EXPECT_EQ(nodes_within(8, {2, 6}), (std::vector<Range>{{2, 4}, {4, 6}}));
  EXPECT_EQ(nodes_within(8, {1, 4}), (std::vector<Range>{{1, 2}, {2, 4}}));
  EXPECT_FALSE(is_node(8, {1, 3}));
  EXPECT_FALSE(is_node(8, {0, 3}));
}

TEST(SlotTree, ASumOfNumbersFollowsIt) {
  const std::vector<double> values{1e16, 1, -1e16, 1, 3};
  EXPECT_EQ(tree_sum(values), ((1e16 + 1) + (-1e16 + 1)) + 3);
  EXPECT_EQ(tree_sum({}), 0);
}

}  // namespace
}  // namespace lockstep
