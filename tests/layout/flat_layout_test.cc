#include "layout/flat_layout.h"
#include "support/messages.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace lockstep::layout {
namespace {

TensorSpec spec(std::string name, std::vector<std::int64_t> sizes, const void* identity = nullptr) {
  return {std::move(name), std::move(sizes), {}, identity};
}

std::vector<std::int64_t> offsets(const FlatLayout& layout) {
  std::vector<std::int64_t> all;
  for (const FlatEntry& entry : layout.entries()) all.push_back(entry.offset);
  return all;
}

// Returns the slices with elements.
std::vector<FlatSlice> slices_of(const FlatLayout& layout, int world, int rank) {
  std::vector<FlatSlice> slices = owned_slices(layout, world, rank);
  std::erase_if(slices, [](const FlatSlice& slice) { return slice.of_tensor.empty(); });
  return slices;
}

TEST(FlatLayout, PlacesTensorsOneAfterAnotherAligned) {
  std::vector<TensorSpec> tensors = {spec("a", {3, 4}), spec("b", {4}), spec("scalar", {}),
                                     spec("c", {5})};
  FlatLayout layout(tensors, {.alignment = 16, .multiple = 8});
  EXPECT_EQ(offsets(layout), (std::vector<std::int64_t>{0, 12, 16, 20}));
  EXPECT_EQ(layout.numel(), 32);
  EXPECT_EQ(layout.used(), 22);
  EXPECT_EQ(layout.bytes(), 128);
}

TEST(FlatLayout, PacksWithoutGapsWhenAskedTo) {
  std::vector<TensorSpec> tensors = {spec("a", {3}), spec("b", {5}), spec("c", {1})};
  FlatLayout layout(tensors, {.alignment = 1});
  EXPECT_EQ(offsets(layout), (std::vector<std::int64_t>{0, 3, 8}));
  EXPECT_EQ(layout.numel(), 9);
}

TEST(FlatLayout, AlignsBytesWhateverTheDtype) {
  for (Dtype dtype : {Dtype{"BFloat16", 2}, {"Float", 4}, {"Double", 8}, {"ComplexDouble", 16}}) {
    std::vector<TensorSpec> tensors = {{"a", {3}, dtype}, {"b", {3}, dtype}};
    FlatLayout layout(tensors);
    EXPECT_EQ(layout.dtype(), dtype);
    EXPECT_EQ(layout.entry(1).offset * dtype.bytes, 64) << dtype.name;
  }
}

TEST(FlatLayout, TiedTensorsShareOnePlace) {
  int weight = 0;
  std::vector<TensorSpec> tensors = {spec("e.weight", {4, 4}, &weight), spec("b", {4}),
                                     spec("h.weight", {4, 4}, &weight)};
  FlatLayout layout(tensors, {.alignment = 4});
  EXPECT_EQ(offsets(layout), (std::vector<std::int64_t>{0, 16, 0}));
  EXPECT_FALSE(layout.entry(0).tied);
  EXPECT_TRUE(layout.entry(2).tied);
  EXPECT_EQ(layout.used(), 20);
  EXPECT_EQ(slices_of(layout, 1, 0).size(), 2U);
}

TEST(FlatLayout, TakesTensorsWithoutElementsAndNoTensorsAtAll) {
  std::vector<TensorSpec> tensors = {spec("none", {0, 7}), spec("a", {2}), spec("none too", {0})};
  FlatLayout layout(tensors, {.alignment = 4});
  EXPECT_EQ(offsets(layout), (std::vector<std::int64_t>{0, 0, 2}));
  EXPECT_EQ(layout.numel(), 2);
  EXPECT_EQ(slices_of(layout, 1, 0).size(), 1U);
  EXPECT_EQ(FlatLayout({}, {.multiple = 5}).numel(), 0);
}

TEST(FlatLayout, ShardsTogetherHoldEveryElementOnce) {
  std::vector<TensorSpec> tensors = {spec("a", {3, 5}), spec("b", {0}), spec("c", {7}),
                                     spec("d", {}), spec("e", {2, 2, 2})};
  for (int world = 1; world <= 9; ++world) {
    FlatLayout layout(tensors, {.alignment = 8, .multiple = world});
    std::vector<std::vector<int>> seen;
    for (const FlatEntry& entry : layout.entries()) seen.emplace_back(entry.numel, 0);
    for (int rank = 0; rank < world; ++rank) {
      Range range = shard_range(layout.numel(), world, rank);
      for (const FlatSlice& slice : slices_of(layout, world, rank)) {
        EXPECT_EQ(range.begin + slice.offset,
                  layout.entry(slice.entry).offset + slice.of_tensor.begin);
        for (std::int64_t i = slice.of_tensor.begin; i < slice.of_tensor.end; ++i)
          ++seen[slice.entry][i];
      }
    }
    for (const auto& tensor : seen)
      for (int times : tensor) EXPECT_EQ(times, 1) << world << " ranks";
  }
}

// More than 7 * 2^31 elements: offsets do not fit in 32 bits.
TEST(FlatLayout, LaysOutMoreThan32BitsCount) {
  constexpr std::int64_t large = (std::int64_t{1} << 31) + 1;
  std::vector<TensorSpec> tensors = {spec("a", {large}), spec("b", {3, large}), spec("c", {5}),
                                     spec("d", {large, 3})};
  for (int world : {1, 2, 3, 7, 1000}) {
    FlatLayout layout(tensors, {.alignment = 64, .multiple = world});
    EXPECT_EQ(layout.entry(1).offset, large + 15);
    EXPECT_EQ(layout.used(), 7 * large + 5);
    EXPECT_EQ(layout.bytes(), 4 * layout.numel());
    std::vector<std::int64_t> found(tensors.size(), 0);  // elements of each tensor
    for (int rank = 0; rank < world; ++rank) {
      Range range = shard_range(layout.numel(), world, rank);
      for (const FlatSlice& slice : slices_of(layout, world, rank)) {
        EXPECT_EQ(slice.of_tensor.begin, found[slice.entry]);
        found[slice.entry] = slice.of_tensor.end;
        EXPECT_EQ(range.begin + slice.offset,
                  layout.entry(slice.entry).offset + slice.of_tensor.begin);
      }
    }
    EXPECT_EQ(found, (std::vector<std::int64_t>{large, 3 * large, 5, 3 * large}));
  }
}

TEST(FlatLayout, RefusesWhatCannotShareAStorage) {
  int weight = 0;
  std::vector<TensorSpec> dtypes = {{"a", {2}, {"Half", 2}}, {"b", {2}, {"BFloat16", 2}}};
  EXPECT_THROW(FlatLayout{dtypes}, InvalidArgument);
  std::vector<TensorSpec> sizes = {spec("a", {2, 3}, &weight), spec("b", {3, 2}, &weight)};
  EXPECT_THROW(FlatLayout{sizes}, InvalidArgument);
  std::vector<TensorSpec> negative = {spec("a", {2, -1})};
  EXPECT_THROW(FlatLayout{negative}, InvalidArgument);
  std::vector<TensorSpec> large = {spec("a", {std::int64_t{1} << 40, std::int64_t{1} << 40})};
  EXPECT_THROW(FlatLayout{large}, InvalidArgument);
  std::vector<TensorSpec> fine = {spec("a", {2})};
  EXPECT_THROW(FlatLayout(fine, {.alignment = 6}), InvalidArgument);
}

}  // namespace
namespace {

std::vector<PlanItem> floats(std::vector<std::int64_t> bytes) {
  std::vector<PlanItem> items;
  for (std::int64_t one : bytes) items.push_back({.bytes = one});
  return items;
}

TEST(BucketPlan, FirstBucketIsSmallAndTheOthersReachTheCap) {
  auto items = floats({40, 40, 40, 40, 40, 40});
  BucketPlan plan =
      plan_buckets(items, reverse_order(6), {.first_bucket_bytes = 10, .bucket_bytes = 100});
  EXPECT_EQ(plan, (BucketPlan{{5}, {4, 3, 2}, {1, 0}}));
}

TEST(BucketPlan, AParameterLargerThanTheCapClosesItsBucket) {
  auto items = floats({5, 1000, 5});
  EXPECT_EQ(plan_buckets(items, reverse_order(3), {.first_bucket_bytes = 10, .bucket_bytes = 100}),
            (BucketPlan{{2, 1}, {0}}));
}

TEST(BucketPlan, ALargeParameterIsABucketOfItsOwn) {
  auto items = floats({40, 40, 200, 40, 199, 200});
  EXPECT_EQ(plan_buckets(items, reverse_order(6),
                         {.first_bucket_bytes = 10, .bucket_bytes = 200, .alone_bytes = 200}),
            (BucketPlan{{5}, {4, 3}, {2}, {1, 0}}));
  EXPECT_EQ(plan_buckets(items, reverse_order(6), {.alone_bytes = 1}).size(), 6U);
  EXPECT_THROW((void)plan_buckets(items, reverse_order(6), {.alone_bytes = 0}), InvalidArgument);
}

TEST(BucketPlan, FollowsTheOrderItIsGiven) {
  auto items = floats({40, 40, 40});
  std::vector<int> order = {1, 2, 0};
  EXPECT_EQ(plan_buckets(items, order, {.first_bucket_bytes = 80, .bucket_bytes = 80}),
            (BucketPlan{{1, 2}, {0}}));
}

TEST(BucketPlan, AnotherKindFillsAnotherBucket) {
  std::vector<PlanItem> items(6, PlanItem{.bytes = 40});
  items[1].kind = items[3].kind = "Half on cpu";
  items[4].kind = "Float on cuda:0";
  BucketPlan plan =
      plan_buckets(items, reverse_order(6), {.first_bucket_bytes = 1000, .bucket_bytes = 1000});
  EXPECT_EQ(plan, (BucketPlan{{4}, {3, 1}, {5, 2, 0}}));
}

TEST(BucketPlan, AlternatingKindsDoNotMakeABucketEach) {
  std::vector<PlanItem> items(100, PlanItem{.bytes = 10});
  for (std::size_t i = 0; i < items.size(); i += 2) items[i].kind = "BFloat16";
  EXPECT_EQ(
      plan_buckets(items, reverse_order(100), {.first_bucket_bytes = 250, .bucket_bytes = 250})
          .size(),
      4U);
}

TEST(BucketPlan, HoldsEveryItemOnceAndOrdersBucketsByTheirLastItem) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<PlanItem> items(random() % 30);
    std::vector<int> order = reverse_order(static_cast<int>(items.size()));
    std::shuffle(order.begin(), order.end(), random);
    for (PlanItem& item : items)
      item = {.bytes = static_cast<std::int64_t>(random() % 100),
              .kind = random() % 2 ? "Float" : "Half"};
    BucketPlan plan = plan_buckets(items, order, {.first_bucket_bytes = 50, .bucket_bytes = 150});
    auto place = [&](int item) {
      return std::find(order.begin(), order.end(), item) - order.begin();
    };
    std::vector<int> all;
    std::ptrdiff_t last = -1;
    for (const auto& bucket : plan) {
      ASSERT_FALSE(bucket.empty());
      EXPECT_GT(place(bucket.back()), last);
      last = place(bucket.back());
      for (int item : bucket) {
        all.push_back(item);
        EXPECT_EQ(items[item].kind, items[bucket.front()].kind);
      }
    }
    std::sort(all.begin(), all.end());
    std::sort(order.begin(), order.end());
    EXPECT_EQ(all, order);
  }
}

TEST(BucketPlan, CompletesAnOrderWithWhatWasNotSeen) {
  EXPECT_EQ(complete_order(std::vector<int>{3, 1}, 5), (std::vector<int>{3, 1, 4, 2, 0}));
  EXPECT_EQ(reverse_order(3), (std::vector<int>{2, 1, 0}));
  EXPECT_TRUE(reverse_order(0).empty());
  EXPECT_TRUE(plan_buckets({}, {}).empty());
}

TEST(BucketPlan, RefusesAnOrderThatIsNoPermutation) {
  auto items = floats({1, 1, 1});
  EXPECT_THROW((void)plan_buckets(items, std::vector<int>{0, 1}), InvalidArgument);
  EXPECT_THROW((void)plan_buckets(items, std::vector<int>{0, 1, 1}), InvalidArgument);
  EXPECT_THROW((void)plan_buckets(items, std::vector<int>{0, 1, 3}), InvalidArgument);
  EXPECT_THROW((void)plan_buckets(items, reverse_order(3), {.bucket_bytes = 0}), InvalidArgument);
}

}  // namespace
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
