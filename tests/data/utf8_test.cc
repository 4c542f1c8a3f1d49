#include "data/utf8.h"

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

TEST(Utf8, EveryCharacterGoesBothWays) {
  for (char32_t code_point = 0; code_point <= 0x10ffff; ++code_point) {
    if (code_point == 0xd800) code_point = 0xe000;  // skip surrogates, which are not characters
    const std::string text = to_utf8(code_point) + "rest";
    const auto character = first_character(text);
    ASSERT_TRUE(character) << std::hex << static_cast<unsigned>(code_point);
    ASSERT_EQ(character->code_point, code_point);
    ASSERT_EQ(character->bytes, text.size() - 4);
  }
}

TEST(Utf8, RefusesOtherBytes) {
  using namespace std::string_literals;
  for (const std::string& bytes :
       {"\x80"s, "\xbf"s,                                   // begins with a continuation byte
        "\xc3"s, "\xe2\x88"s, "\xf0\x9f\x98"s,              // truncated at the end
        "\xc3 "s, "\xe2\x88 "s, "\xf0 \x98\x80"s,           // truncated in the middle
        "\xc0\x80"s, "\xe0\x80\x80"s, "\xf0\x80\x80\x80"s,  // overlong encodings
        "\xed\xa0\x80"s, "\xed\xbf\xbf"s,                   // surrogates
        "\xf4\x90\x80\x80"s, "\xf8\x88\x80\x80\x80"s, "\xff"s}) {
    EXPECT_FALSE(first_character(bytes));
  }
}

TEST(Utf8, DescribesCharacters) {
  EXPECT_EQ(described(U'a'), "'a' (U+0061)");
  EXPECT_EQ(described(U'\n'), "U+000A");
  EXPECT_EQ(described(U' '), "U+0020");
  EXPECT_EQ(described(0x1f600), "'\xf0\x9f\x98\x80' (U+1F600)");
}

TEST(Utf8, CountsLinesAndColumns) {
  const std::string text = "ab\n\xc3\xa9x\n";
  EXPECT_EQ(position(text, 0), "offset 0 (line 1, column 1)");
  EXPECT_EQ(position(text, 2), "offset 2 (line 1, column 3)");
  EXPECT_EQ(position(text, 5), "offset 5 (line 2, column 2)");
  EXPECT_EQ(position(text, 7), "offset 7 (line 3, column 1)");
}

}  // namespace
}  // namespace lockstep::data
