#include "parallel/sharded/unit_storage.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using sharded::BufferPool;

at::Tensor taken(BufferPool& pool, std::int64_t numel) {
  return pool.take(numel, at::kFloat, at::kCPU);
}

TEST(BufferPool, GivesTheSameMemoryAgain) {
  Group group;
  BufferPool pool(group);
  at::Tensor first = taken(pool, 100);
  const void* data = first.const_data_ptr();
  pool.give(std::move(first));
  EXPECT_EQ(pool.bytes().free, 400);
  EXPECT_EQ(taken(pool, 100).const_data_ptr(), data);
  EXPECT_EQ(pool.bytes().free, 0);
  EXPECT_EQ(pool.bytes().taken, 400);
}

TEST(BufferPool, CountsWhatIsTakenAndItsPeak) {
  Group group;
  BufferPool pool(group);
  at::Tensor a = taken(pool, 10), b = taken(pool, 20);
  pool.give(std::move(a));
  EXPECT_EQ(pool.bytes().taken, 80);
  EXPECT_EQ(pool.bytes().peak, 120);
  pool.reset_peak();
  EXPECT_EQ(pool.bytes().peak, 80);
  at::Tensor for_good = pool.make(1000, at::kFloat, at::kCPU);
  EXPECT_EQ(pool.bytes().taken, 80);
}

// Buffers of different sizes do not accumulate: free buffers are evicted, the oldest first.
TEST(BufferPool, NeverHoldsMoreThanWasTakenAtOnce) {
  Group group;
  BufferPool pool(group);
  for (int again = 0; again < 3; ++again)
    for (std::int64_t numel : {100, 70, 60, 40, 10}) {
      at::Tensor one = taken(pool, numel), two = taken(pool, 30);
      EXPECT_LE(pool.bytes().taken + pool.bytes().free, 520);
      pool.give(std::move(one));
      pool.give(std::move(two));
      EXPECT_LE(pool.bytes().free, 520);
    }
  EXPECT_GT(pool.bytes().free, 0);
  pool.clear();
  EXPECT_EQ(pool.bytes().free, 0);
}

TEST(BufferPool, MemoryMadeInInferenceModeCanBeWrittenOutside) {
  Group group;
  BufferPool pool(group);
  at::Tensor buffer;
  {
    c10::InferenceMode inference;
    buffer = taken(pool, 4);
  }
  EXPECT_FALSE(buffer.is_inference());
}

}  // namespace
}  // namespace lockstep
