#include "checkpoint/distributed_checkpoint.h"

#include "support/messages.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using layout::Box;

// A grid of rows x columns boxes of 2 x 3 elements, in random order.
std::vector<Box> grid(std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  std::vector<Box> boxes;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      boxes.push_back({{2 * row, 3 * column}, {2, 3}});
  std::ranges::shuffle(boxes, random);
  return boxes;
}

TEST(ChunkCover, ComparesFewPairs) {
  std::mt19937 random(1);
  const auto compared = [&](std::int64_t rows, std::int64_t columns) {
    return check_cover("w", std::vector<std::int64_t>{2 * rows, 3 * columns},
                       grid(rows, columns, random));
  };
  EXPECT_EQ(compared(4096, 1), 0u);
  EXPECT_EQ(compared(1, 4096), 0u);
  EXPECT_LE(compared(64, 64), 64u * 64 * 64);
  EXPECT_LE(compared(1024, 4), 4u * 4096);
  EXPECT_LE(compared(4, 1024), 4u * 4096);
  EXPECT_EQ(check_cover("scalar", {}, std::vector<Box>{{{}, {}}}), 0u);
}

// The naive rule: counts how often each element is covered.
bool is_whole(std::int64_t rows, std::int64_t columns, const std::vector<Box>& boxes) {
  std::vector<int> counts(static_cast<std::size_t>(rows * columns));
  for (const Box& box : boxes)
    for (std::int64_t row = 0; row < box.sizes[0]; ++row)
      for (std::int64_t column = 0; column < box.sizes[1]; ++column)
        ++counts[static_cast<std::size_t>((box.offsets[0] + row) * columns + box.offsets[1] +
                                          column)];
  return std::ranges::all_of(counts, [](int count) { return count == 1; });
}

TEST(ChunkCover, RefusesWhatIsNotEachElementOnce) {
  std::mt19937 random(2);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto rows = static_cast<std::int64_t>(1 + random() % 4);
    const auto columns = static_cast<std::int64_t>(1 + random() % 4);
    std::vector<Box> boxes = grid(rows, columns, random);
    if (random() % 2 == 0) {  // one box is moved, missing, duplicated, or has another size
      Box& changed = boxes[random() % boxes.size()];
      switch (random() % 4) {
        case 0:
          changed.offsets = {static_cast<std::int64_t>(random() % (2 * rows - 1)), 0};
          break;
        case 1:
          boxes.pop_back();
          break;
        case 2:
          boxes.push_back(changed);
          break;
        default:
          changed.sizes = {1, 3};
      }
    }
    const std::vector<std::int64_t> sizes{2 * rows, 3 * columns};
    bool is_taken = true;
    try {
      check_cover("w", sizes, boxes);
    } catch (const BadInput&) {
      is_taken = false;
      ++refused;
    }
    ASSERT_EQ(is_taken, is_whole(sizes[0], sizes[1], boxes)) << round;
  }
  EXPECT_GT(refused, 500);
  const std::vector<Box> twice{{{}, {}}, {{}, {}}};
  EXPECT_EQ(test::message_of<BadInput>([&] { check_cover("s", {}, twice); }),
            "parts [] + [] and [] + [] of 's' overlap");
}

}  // namespace
}  // namespace lockstep::checkpoint
