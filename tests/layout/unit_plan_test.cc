#include <lockstep/base/error.h>

#include "layout/flat_layout.h"
#include "support/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace lockstep::layout {
namespace {

using test::expect_words;
using test::message_of;

std::vector<UnitItem> items_of(const std::vector<std::string>& names) {
  std::vector<UnitItem> items;
  for (const std::string& name : names) items.push_back({name});
  return items;
}

std::vector<PlannedUnit> plan(const std::vector<UnitItem>& items,
                              const std::vector<std::string>& patterns) {
  return plan_units(items, patterns);
}

TEST(UnitPlan, GivesEachModuleItsUnitAndTheRestAnother) {
  auto items = items_of({"wte.weight", "h.0.fc.weight", "h.0.fc.bias", "h.1.fc.weight", "ln.bias"});
  EXPECT_EQ(plan(items, {"h.*"}),
            (std::vector<PlannedUnit>{{"rest", -1, {0, 4}}, {"h.0", 0, {1, 2}}, {"h.1", 0, {3}}}));
  EXPECT_EQ(plan(items, {}), (std::vector<PlannedUnit>{{"rest", -1, {0, 1, 2, 3, 4}}}));
  EXPECT_TRUE(plan({}, {}).empty());
}

TEST(UnitPlan, TheDeepestModuleWinsAndAmongPatternsTheFirst) {
  auto items = items_of({"h.0.mlp.weight", "h.0.ln.bias", "scale"});
  EXPECT_EQ(plan(items, {"h.*", "h.*.mlp", "*.*.mlp", "scale"}),
            (std::vector<PlannedUnit>{{"h.0.mlp", 1, {0}}, {"h.0", 0, {1}}, {"scale", 3, {2}}}));
}

TEST(UnitPlan, ATiedWeightIsKnownByAllItsNames) {
  std::vector<UnitItem> items = items_of({"out", "embed.weight", "mid.weight"});
  items[0].aliases = {"head.weight", "tail.weight"};
  EXPECT_EQ(plan(items, {"head", "mid"}),
            (std::vector<PlannedUnit>{{"head", 0, {0}}, {"rest", -1, {1}}, {"mid", 1, {2}}}));
  EXPECT_EQ(plan(items, {"tail", "head.weight"}),
            (std::vector<PlannedUnit>{{"head.weight", 1, {0}}, {"rest", -1, {1, 2}}}));
  EXPECT_EQ(plan(items, {"tail", "out"}),
            (std::vector<PlannedUnit>{{"out", 1, {0}}, {"rest", -1, {1, 2}}}));
}

TEST(UnitPlan, EveryKindIsAUnitOfItsOwn) {
  std::vector<UnitItem> items = {{"h.0.a", "Float"},
                                 {"h.0.b", "Half"},
                                 {"h.0.c", "Float, frozen"},
                                 {"h.0.d", "Half"},
                                 {"h.0.e", "Float"}};
  EXPECT_EQ(
      plan(items, {"h.*"}),
      (std::vector<PlannedUnit>{{"h.0", 0, {0, 4}}, {"h.0 (2)", 0, {1, 3}}, {"h.0 (3)", 0, {2}}}));
}

TEST(UnitPlan, APatternThatNamesNothingIsAnErrorThatHelps) {
  auto items = items_of({"transformer.h.0.weight", "transformer.wte.weight"});
  expect_words(message_of<InvalidArgument>([&] { plan(items, {"transfomer.h"}); }),
               {"unit pattern", "'transfomer.h'", "transformer.h"});
  expect_words(message_of<InvalidArgument>([&] { plan({}, {"blocks.*"}); }), {"'blocks.*'"});
}

std::vector<TensorSpec> specs_of(const std::vector<std::int64_t>& sizes) {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    specs.push_back({"p" + std::to_string(i), {sizes[i]}});
  return specs;
}

// Every element of every tensor is in the shard of exactly one rank, at the offset that the layout
// gives.
void expect_partition(const FlatLayout& layout, int world) {
  std::map<std::pair<int, std::int64_t>, std::int64_t> place;  // offset of (entry, element)
  std::int64_t length = shard_range(layout.numel(), world, 0).length();
  for (int rank = 0; rank < world; ++rank) {
    ASSERT_EQ(shard_range(layout.numel(), world, rank).length(), length);
    std::int64_t end = 0;
    for (const FlatSlice& slice : owned_slices(layout, world, rank)) {
      ASSERT_GE(slice.offset, end);
      end = slice.offset + slice.of_tensor.length();
      for (std::int64_t i = 0; i < slice.of_tensor.length(); ++i)
        ASSERT_TRUE(place
                        .emplace(std::pair(slice.entry, slice.of_tensor.begin + i),
                                 rank * length + slice.offset + i)
                        .second);
    }
    ASSERT_LE(end, length);
  }
  std::size_t expected = 0;
  for (std::size_t e = 0; e < layout.entries().size(); ++e) {
    const FlatEntry& entry = layout.entries()[e];
    if (entry.tied) continue;
    expected += static_cast<std::size_t>(entry.numel);
    for (std::int64_t i = 0; i < entry.numel; ++i)
      ASSERT_EQ(place.at({static_cast<int>(e), i}), entry.offset + i);
  }
  ASSERT_EQ(place.size(), expected);
}

TEST(UnitPlan, RanksPartitionEveryThreeSizesToNine) {
  for (int world = 1; world <= 9; ++world)
    for (std::int64_t a = 0; a <= 9; ++a)
      for (std::int64_t b = 0; b <= 9; ++b)
        for (std::int64_t c : {0, 1, 5, 9}) {
          for (std::int64_t alignment : {4, 16}) {
            FlatLayout layout = unit_layout(specs_of({a, b, c}), world, alignment);
            EXPECT_EQ(layout.numel() % world, 0);
            EXPECT_EQ(layout.numel() == 0, a + b + c == 0);
            expect_partition(layout, world);
            if (HasFatalFailure()) FAIL() << a << " " << b << " " << c << " over " << world;
          }
        }
}

TEST(UnitPlan, EveryTensorHasASliceOnEveryRankPerhapsEmpty) {
  for (int world = 1; world <= 9; ++world) {
    FlatLayout layout = unit_layout(specs_of({100, 0, 7}), world);
    for (int rank = 0; rank < world; ++rank)
      EXPECT_EQ(owned_slices(layout, world, rank).size(), 3U);
    EXPECT_EQ(layout.numel() / world * 4 % 64, 0);  // shards begin on cache lines
    expect_partition(layout, world);
  }
}

TEST(UnitPlan, ATiedTensorIsOwnedOnce) {
  int weight = 0;
  std::vector<TensorSpec> specs = {
      {"e", {5, 2}, {}, &weight}, {"b", {3}}, {"h", {5, 2}, {}, &weight}};
  for (int world = 1; world <= 9; ++world) {
    FlatLayout layout = unit_layout(specs, world, 4);
    expect_partition(layout, world);
    EXPECT_EQ(owned_slices(layout, world, 0).size(), 2U);
  }
}

}  // namespace
}  // namespace lockstep::layout
