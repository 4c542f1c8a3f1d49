#include "sys/streaming_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace lockstep::sys {
namespace {

std::vector<std::byte> numbered(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 256);
  return bytes;
}

using Copy = std::function<void(std::span<std::byte> to, std::span<const std::byte> from)>;

void expect_copied(const Copy& copy_by, std::size_t from, std::size_t to, std::size_t count) {
  constexpr std::byte untouched{0xa5};
  const std::vector<std::byte> source = numbered(from + count);
  std::vector<std::byte> copy(to + count + 128, untouched);
  const auto wanted = std::span(source).subspan(from);
  copy_by(std::span(copy).subspan(to, count), wanted);
  ASSERT_TRUE(std::ranges::equal(std::span(copy).subspan(to, count), wanted))
      << from << " " << to << " " << count;
  EXPECT_EQ(std::ranges::count(std::span(copy).first(to), untouched),
            static_cast<std::ptrdiff_t>(to));
  EXPECT_EQ(std::ranges::count(std::span(copy).subspan(to + count), untouched), 128);
}

// Returns all implementations that this processor supports, and streaming_copy() itself.
std::vector<Copy> all_ways() {
  std::vector<Copy> ways{streaming_copy};
  for (const StreamingKernel& kernel : streaming_kernels())
    if (kernel.is_available())
      ways.emplace_back([&](auto to, auto from) { streaming_copy_by(kernel, to, from); });
  return ways;
}

TEST(StreamingCopy, CopiesAnyBytesToAnyPlaceAndNoOthers) {
  for (const Copy& way : all_ways())
    for (std::size_t from : {0, 1, 7, 16, 63})
      for (std::size_t to = 0; to < 65; ++to)
        for (std::size_t count : {0, 1, 15, 63, 64, 65, 127, 128, 200, 1000, 4096 + 33})
          expect_copied(way, from, to, count);
}

TEST(StreamingCopy, CopiesEveryLength) {
  for (const Copy& way : all_ways())
    for (std::size_t count = 0; count <= 300; ++count) expect_copied(way, count % 7, 0, count);
}

TEST(StreamingCopy, CopiesLargeBlocks) {
  for (const Copy& way : all_ways()) expect_copied(way, 3, 5, (std::size_t{9} << 20) + 77);
}

}  // namespace
}  // namespace lockstep::sys
