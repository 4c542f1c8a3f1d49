// Tests how much freed memory an arena keeps: the amount that was reused recently.

#include "comm/backends/shm/arena.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

using namespace lockstep;
using shm::Arena;
using shm::RetentionEstimate;

namespace {

constexpr std::size_t mebibyte = 1 << 20;

// A training step: allocates activations one after another and frees all of them at its end.
void step(RetentionEstimate& reuse, std::size_t blocks) {
  for (std::size_t block = 0; block < blocks; ++block) reuse.allocated(mebibyte);
  for (std::size_t block = 0; block < blocks; ++block) reuse.freed(mebibyte);
}

TEST(RetentionEstimate, OfWhatIsFreedOnceThereIsNone) {
  RetentionEstimate reuse;
  step(reuse, 1000);
  EXPECT_EQ(reuse.bytes(), 0U);
  reuse.allocated(300 * mebibyte);
  EXPECT_EQ(reuse.bytes(), 2 * 300 * mebibyte);
}

TEST(RetentionEstimate, IsWhatEachStepTakesAgain) {
  RetentionEstimate reuse;
  reuse.allocated(200 * mebibyte);  // parameters
  for (int count = 0; count < 100; ++count) {
    step(reuse, 600);
    EXPECT_EQ(reuse.bytes(), count == 0 ? 0 : 2 * 600 * mebibyte) << count;
    step(reuse, 10);  // an evaluation
  }
}

TEST(RetentionEstimate, OfMemoryThatWasNeverFreeIsNone) {
  RetentionEstimate reuse;
  step(reuse, 100);
  reuse.allocated(700 * mebibyte);
  EXPECT_EQ(reuse.bytes(), 2 * 100 * mebibyte);
}

TEST(RetentionEstimate, IsForgottenAfterTwoWindowsWithoutIt) {
  RetentionEstimate reuse;
  step(reuse, 1000);
  step(reuse, 1000);
  EXPECT_EQ(reuse.bytes(), 2 * 1000 * mebibyte);
  const std::size_t window = RetentionEstimate::turnovers * 1000;
  for (std::size_t handed_out = 0; handed_out < window; handed_out += 10) step(reuse, 10);
  EXPECT_EQ(reuse.bytes(), 2 * 1000 * mebibyte) << "the next step may be as large";
  for (std::size_t handed_out = 0; handed_out < window; handed_out += 10) step(reuse, 10);
  EXPECT_EQ(reuse.bytes(), 2 * 10 * mebibyte);
}

TEST(RetentionEstimate, DecidesWhichPagesAnArenaKeeps) {
  Arena arena(1024 * mebibyte);
  std::vector<std::byte*> blocks(300);
  auto one_step = [&] {
    for (auto*& block : blocks) {
      block = arena.allocate(mebibyte);
      std::memset(block, 1, mebibyte);
    }
    for (auto* block : blocks) (void)arena.free(block);
  };
  one_step();
  EXPECT_LE(arena.resident_bytes(), 257 * mebibyte) << "nobody has wanted them again";
  one_step();
  EXPECT_GE(arena.resident_bytes(), 300 * mebibyte);
  arena.give_back_pages();
  EXPECT_LE(arena.resident_bytes(), mebibyte);
  one_step();
  EXPECT_GE(arena.resident_bytes(), 300 * mebibyte);
}

}  // namespace
