#include "layout/flat_layout.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep::layout {
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
}  // namespace lockstep::layout
