
#include "comm/backends/shm/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace lockstep::shm {
namespace {

TEST(Allocator, AlignsToLinesAndLargeRangesToPages) {
  Allocator allocator(4096, 1 << 20);
  EXPECT_EQ(*allocator.allocate(1), 4096U);
  EXPECT_EQ(*allocator.allocate(65), 4096U + 64);
  EXPECT_EQ(*allocator.allocate(Allocator::large) % Allocator::page, 0U);
}

TEST(Allocator, SaysWhenThereIsNoRoom) {
  Allocator allocator(0, 1 << 20);
  EXPECT_FALSE(allocator.allocate((1 << 20) + 1));
  auto all = allocator.allocate(1 << 20);
  ASSERT_TRUE(all);
  EXPECT_FALSE(allocator.allocate(1));
  EXPECT_EQ(allocator.largest_free(), 0U);
  allocator.free(*all);
  EXPECT_EQ(allocator.largest_free(), std::size_t{1} << 20);
}

TEST(Allocator, JoinsNeighboursAgain) {
  Allocator allocator(0, 1 << 20);
  auto a = *allocator.allocate(1000);
  auto b = *allocator.allocate(1000);
  auto c = *allocator.allocate(1000);
  allocator.free(a);
  allocator.free(c);
  allocator.free(b);
  EXPECT_EQ(allocator.used(), 0U);
  EXPECT_EQ(allocator.largest_free(), std::size_t{1} << 20);
}

TEST(Allocator, NeverHandsOutTheSameByteTwice) {
  constexpr std::size_t end = 8 << 20;
  Allocator allocator(4096, end);
  std::map<std::size_t, std::size_t> live;
  std::mt19937 random(7);
  for (int step = 0; step < 20'000; ++step) {
    if (live.size() > 100 || (!live.empty() && random() % 2 == 0)) {
      auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      allocator.free(victim->first);
      live.erase(victim);
      continue;
    }
    std::size_t bytes = 1 + random() % (random() % 10 == 0 ? 200'000 : 3000);
    auto offset = allocator.allocate(bytes);
    if (!offset) continue;
    ASSERT_GE(*offset, 4096U);
    ASSERT_LE(*offset + bytes, end);
    auto next = live.lower_bound(*offset);
    if (next != live.end()) ASSERT_LE(*offset + bytes, next->first);
    if (next != live.begin()) ASSERT_LE(std::prev(next)->first + std::prev(next)->second, *offset);
    live.emplace(*offset, bytes);
  }
  for (auto [offset, bytes] : live) allocator.free(offset);
  EXPECT_EQ(allocator.used(), 0U);
  EXPECT_EQ(allocator.largest_free(), end - 4096);
}

TEST(Allocator, KnowsHowMuchOfTheFreeSpaceWasTouched) {
  Allocator allocator(0, 1 << 20);
  EXPECT_EQ(allocator.touched_free(), 0U);
  auto a = *allocator.allocate(Allocator::large);
  EXPECT_EQ(allocator.touched_free(), 0U);
  allocator.free(a);
  EXPECT_EQ(allocator.touched_free(), Allocator::large);
  auto extent = allocator.take_touched();
  ASSERT_TRUE(extent);
  EXPECT_GE(extent->bytes, Allocator::large);
  EXPECT_EQ(allocator.touched_free(), 0U);
  EXPECT_FALSE(allocator.take_touched());
}

TEST(Arena, FreesABlockWhenItsLastHolderLetsGo) {
  Arena arena(16 << 20);
  auto before = arena.used();
  auto* held = arena.allocate_held(1 << 20, 1, 1);
  Arena::release_hold(held);
  EXPECT_GT(arena.used(), before + (1 << 20));
  Arena::take(held);
  EXPECT_GT(arena.used(), before + (1 << 20));
  Arena::release_hold(held);
  EXPECT_EQ(arena.used(), before);
  for (int i = 0; i < 100; ++i) {  // far more than the arena has room for
    auto* again = arena.allocate_held(4 << 20, 1);
    Arena::release_hold(again);
  }
}

TEST(Arena, FreesABlockThatSomeWillNeverTakeOnceTheOthersLetGo) {
  Arena arena(16 << 20);
  auto before = arena.used();
  auto* held = arena.allocate_held(1 << 20, 1, 2);
  Arena::take(held);
  Arena::release_hold(held);
  Arena::expect_nobody(held);
  EXPECT_GT(arena.used(), before + (1 << 20));
  Arena::release_hold(held);
  EXPECT_EQ(arena.used(), before);
}

}  // namespace
}  // namespace lockstep::shm
