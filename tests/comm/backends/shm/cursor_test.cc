#include "comm/backends/shm/ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace lockstep::shm {
namespace {

TEST(Cursor, BeginsFreshInZeroedMemory) {
  CursorWord word{0};
  EXPECT_EQ(claim(word, 1, 2), 0);
  EXPECT_EQ(claim(word, 1, 2), 1);
  EXPECT_EQ(claim(word, 1, 2), std::nullopt);
}

TEST(Cursor, GivesAStaleClaimerNothing) {
  CursorWord word{0};
  EXPECT_EQ(claim(word, 65, 3), 0);
  EXPECT_EQ(claim(word, 1, 100), std::nullopt);
  EXPECT_EQ(claim(word, 65, 3), 1);
}

TEST(Cursor, IsDoneWhenAllAreOrTheSlotServesALaterOperation) {
  CursorWord word{0};
  EXPECT_FALSE(all_done(word, 7, 2));
  EXPECT_EQ(count_done(word, 7), 1);
  EXPECT_FALSE(all_done(word, 7, 2));
  EXPECT_EQ(count_done(word, 7), 2);
  EXPECT_TRUE(all_done(word, 7, 2));
  EXPECT_EQ(count_done(word, 71), 1);
  EXPECT_TRUE(all_done(word, 7, 2));
  EXPECT_FALSE(all_done(word, 71, 2));
}

TEST(Cursor, GivesEverySegmentToOneThread) {
  constexpr int segments = 500;
  constexpr int operations = 50;
  CursorWord cursor{0};
  CursorWord done{0};
  std::vector<std::atomic<int>> claimed(segments * operations);
  auto work = [&] {
    for (int operation = 1; operation <= operations; ++operation) {
      while (auto segment = claim(cursor, operation, segments)) {
        claimed[(operation - 1) * segments + *segment].fetch_add(1);
        count_done(done, operation);
      }
      while (!all_done(done, operation, segments)) std::this_thread::yield();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(work);
  for (auto& thread : threads) thread.join();
  for (auto& count : claimed) ASSERT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace lockstep::shm
