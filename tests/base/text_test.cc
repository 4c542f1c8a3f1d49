#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(Text, IntegersAreReadWholeOrNotAtAll) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("-12"), -12);
  EXPECT_EQ(parse_integer("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  for (auto bad : {"", "x", "1x", " 1", "1 ", "+1", "1.0", "9223372036854775808"})
    EXPECT_FALSE(parse_integer(bad)) << bad;
}

TEST(Text, NumbersAreFinite) {
  EXPECT_EQ(parse_number("1e-3"), 1e-3);
  EXPECT_EQ(parse_number("-0.5"), -0.5);
  for (auto bad : {"", "nan", "inf", "1e999", "0.5x"}) EXPECT_FALSE(parse_number(bad)) << bad;
}

TEST(Text, Flags) {
  for (auto yes : {"1", "true", "Yes", "ON"}) EXPECT_EQ(parse_flag(yes), true) << yes;
  for (auto no : {"0", "false", "No", "off"}) EXPECT_EQ(parse_flag(no), false) << no;
  for (auto bad : {"", "2", "y"}) EXPECT_FALSE(parse_flag(bad)) << bad;
}

TEST(Text, BytesAreRead) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("12 MB"), 12'000'000);
  EXPECT_EQ(parse_bytes("4GiB"), std::int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("1.5 kb"), 1500);
  EXPECT_EQ(parse_bytes("0B"), 0);
  for (auto bad : {"", "-1", "-1 MB", "MB", "4 GiBs", "4 G", "1e3 MB", "12 MB ", "nan MB", "inf B",
                   "99999999 TiB"}) {
    EXPECT_FALSE(parse_bytes(bad)) << bad;
  }
}

TEST(Text, BytesAreWritten) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1000 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(12'000'000), "11.4 MiB");
  EXPECT_EQ(format_bytes(12'345'678), "11.8 MiB");
  EXPECT_EQ(format_bytes(1'048'575), "1 MiB");
  EXPECT_EQ(format_bytes(std::int64_t{4} << 30), "4 GiB");
  EXPECT_EQ(format_bytes(-1500), "-1.46 KiB");
  EXPECT_FALSE(format_bytes(std::numeric_limits<std::int64_t>::min()).empty());
}

TEST(Text, BytesComeBackWithinTheDigitsShown) {
  for (std::int64_t bytes = 1; bytes < (std::int64_t{1} << 50); bytes = bytes * 3 + 7) {
    auto back = parse_bytes(format_bytes(bytes));
    ASSERT_TRUE(back) << bytes;
    EXPECT_NEAR(static_cast<double>(*back), static_cast<double>(bytes),
                0.006 * static_cast<double>(bytes))
        << bytes;
  }
}

TEST(Text, DurationsAreRead) {
  EXPECT_EQ(parse_duration("1m30s"), 90s);
  EXPECT_EQ(parse_duration("250ms"), 250ms);
  EXPECT_EQ(parse_duration("2h"), 2h);
  EXPECT_EQ(parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(parse_duration("90"), 90s);
  EXPECT_EQ(parse_duration("0"), 0s);
  for (auto bad : {"", "s", "1m30", "-1s", "1d", "1s-1s", "1e3s", "9999999999h"})
    EXPECT_FALSE(parse_duration(bad)) << bad;
}

TEST(Text, DurationsAreWritten) {
  EXPECT_EQ(format_duration(0s), "0s");
  EXPECT_EQ(format_duration(Duration(7)), "7ns");
  EXPECT_EQ(format_duration(4us), "4us");
  EXPECT_EQ(format_duration(250ms), "250ms");
  EXPECT_EQ(format_duration(12'340ms), "12.3s");
  EXPECT_EQ(format_duration(59'990ms), "1m");
  EXPECT_EQ(format_duration(90s), "1m30s");
  EXPECT_EQ(format_duration(10min), "10m");
  EXPECT_EQ(format_duration(2h + 5min + 3s), "2h5m");
  EXPECT_EQ(format_duration(-90s), "-1m30s");
  EXPECT_EQ(format_duration(Duration::max()), "forever");
}

TEST(Text, DurationsComeBackWithinTheDigitsShown) {
  for (std::int64_t ns = 1; ns < 1'000'000'000'000'000; ns = ns * 3 + 7) {
    auto back = parse_duration(format_duration(Duration(ns)));
    ASSERT_TRUE(back) << ns;
    EXPECT_NEAR(static_cast<double>(back->count()), static_cast<double>(ns),
                0.02 * static_cast<double>(ns))
        << ns;
  }
}

TEST(Text, PartsAndWords) {
  std::string parts;
  for (auto text : {"a,,b", "", "a,"})
    for_each_part(text, ',', [&](auto part) { (parts += part) += ';'; });
  EXPECT_EQ(parts, "a;;b;;a;;");
  EXPECT_EQ(words_of("  a bc\n\td\n"), (std::vector<std::string>{"a", "bc", "d"}));
}

TEST(Text, Lists) {
  std::vector<std::string> parts{"a", "b", "c"};
  EXPECT_EQ(join(parts), "a, b, c");
  EXPECT_EQ(join(std::span(parts).first(1)), "a");
  EXPECT_EQ(join({}), "");
  EXPECT_EQ(rank_list({}), "no rank");
  EXPECT_EQ(rank_list(std::vector<int>{3}), "rank 3");
  EXPECT_EQ(rank_list(std::vector<int>{0, 1, 2, 5}), "ranks 0-2, 5");
  EXPECT_EQ(rank_list(std::vector<int>{1, 2, 4}), "ranks 1, 2, 4");
}

}  // namespace
}  // namespace lockstep
