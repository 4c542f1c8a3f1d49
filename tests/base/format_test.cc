#include "base/format.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

namespace lockstep {
namespace {

TEST(Format, EachKindOfArgument) {
  std::string text = "text";
  EXPECT_EQ(formatted("{} {} {}", 1, -2L, std::uint8_t{3}), "1 -2 3");
  EXPECT_EQ(formatted("{} {} {}", text, "words", std::string_view("view")), "text words view");
  EXPECT_EQ(formatted("{} {} {}", true, 'c', 0.5), "true c 0.5");
  EXPECT_EQ(formatted("{}", std::numeric_limits<std::uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(formatted("nothing"), "nothing");
}

TEST(Format, SpecificationsAndBraces) {
  EXPECT_EQ(formatted("{:.3f}|{:>5}|{:016x}", 1.0, "ab", 255), "1.000|   ab|00000000000000ff");
  EXPECT_EQ(formatted("{{{}}}", 7), "{7}");
  EXPECT_THROW((void)formatted("{:.3f}", "text"), std::runtime_error);
}

TEST(Format, RangesAreListed) {
  EXPECT_EQ(listed(std::vector<int>{1, 2, 3}, ", "), "1, 2, 3");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b"}, " and ", "'{}'"), "'a' and 'b'");
  EXPECT_EQ(listed(std::vector<int>{}, ", "), "");
}

TEST(Format, PatternsThatAreKnownLate) {
  std::vector<FormatArgument> arguments{FormatArgument(1), FormatArgument("two")};
  EXPECT_EQ(formatted_from("{1} {0}", arguments), "two 1");
}

}  // namespace
}  // namespace lockstep
