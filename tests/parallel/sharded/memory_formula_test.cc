#include "parallel/sharded/checks.h"

#include <gtest/gtest.h>

namespace lockstep::sharded {
namespace {

constexpr std::int64_t elements = 5040;  // divisible by 1 to 9 ranks

// Bytes of parameter and gradient per element.
double kept(std::int64_t element_bytes, int world, const ShardOptions& options) {
  ParameterSize size{.elements = elements,
                     .own_bytes = element_bytes,
                     .computed_bytes = element_bytes,
                     .reduced_bytes = element_bytes};
  return static_cast<double>(memory_of(size, world, options).kept) / elements;
}

TEST(MemoryFormula, IsThatOfEachLevel) {
  for (int world = 1; world <= 9; ++world) {
    double n = world;
    for (int bytes : {2, 4}) {
      EXPECT_DOUBLE_EQ(kept(bytes, world, {.level = ShardLevel::optimizer}), 2 * bytes);
      EXPECT_DOUBLE_EQ(kept(bytes, world, {.level = ShardLevel::gradients}), bytes + bytes / n);
      EXPECT_DOUBLE_EQ(kept(bytes, world, {.level = ShardLevel::full}), 2 * bytes / n);
      EXPECT_DOUBLE_EQ(kept(bytes, world, {.storage = ShardStorage::node_shared}), 2 * bytes / n);
    }
  }
}

TEST(MemoryFormula, UnitsInUseAreInFlight) {
  ParameterSize size{.elements = elements};
  EXPECT_EQ(memory_of(size, 2, {.level = ShardLevel::optimizer}).in_flight, 0);
  EXPECT_EQ(memory_of(size, 2, {.level = ShardLevel::gradients}).in_flight, 4 * elements);
  EXPECT_EQ(memory_of(size, 2, {.level = ShardLevel::full}).in_flight, 8 * elements);
  EXPECT_EQ(memory_of(size, 2, {.storage = ShardStorage::node_shared}).in_flight, 4 * elements);
}

TEST(MemoryFormula, WhatIsCastIsKeptTwice) {
  ParameterSize size{
      .elements = elements, .computed_bytes = 2, .reduced_bytes = 2, .is_cast = true};
  EXPECT_EQ(memory_of(size, 2, {.level = ShardLevel::full}).kept, (4 + 4) * elements / 2);
  EXPECT_EQ(memory_of(size, 2, {.level = ShardLevel::gradients}).kept,
            (4 + 4) * elements / 2 + 2 * elements);
}

TEST(MemoryFormula, WhatIsNotTrainedHasNoGradient) {
  ParameterSize size{.elements = elements, .requires_grad = false};
  EXPECT_EQ(memory_of(size, 2, {.level = ShardLevel::full}).kept, 4 * elements / 2);
  EXPECT_EQ(memory_of(size, 2, {.level = ShardLevel::full}).in_flight, 4 * elements);
}

}  // namespace
}  // namespace lockstep::sharded
