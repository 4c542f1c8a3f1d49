#include "data/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

const std::string wrong = "\xef\xbf\xbd";

std::string valid_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.take(bytes);
  return text + stream.finish();
}

TEST(Utf8Stream, PassesOnWholeCharactersOnly) {
  Utf8Stream stream;
  std::vector<std::string> parts;
  for (char byte : std::string("a\xc3\xa9\xe2\x88\x9e\xf0\x9f\x98\x80z"))
    parts.push_back(stream.take({&byte, 1}));
  EXPECT_EQ(parts, (std::vector<std::string>{"a", "", "\xc3\xa9", "", "", "\xe2\x88\x9e", "", "",
                                             "", "\xf0\x9f\x98\x80", "z"}));
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, ReplacesWhatBelongsToNoCharacter) {
  // Each result equals that of bytes.decode("utf-8", "replace") in Python.
  EXPECT_EQ(valid_utf8("a\xff"
                       "b"),
            "a" + wrong + "b");
  EXPECT_EQ(valid_utf8("\xe2\x88 "), wrong + " ");
  EXPECT_EQ(valid_utf8("\xe0\x80\x80"), wrong + wrong + wrong);
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), wrong + wrong + wrong);
  EXPECT_EQ(valid_utf8("\xf0\x9f\x98"), wrong);
  EXPECT_EQ(valid_utf8("\xf0\x9f\xc3\xa9"), wrong + "\xc3\xa9");
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), wrong + wrong + wrong + wrong);
  EXPECT_EQ(valid_utf8("\xc3\xc3\xa9"), wrong + "\xc3\xa9");
  EXPECT_EQ(valid_utf8(""), "");
}

TEST(Utf8Stream, GivesTheSameTextHoweverTheBytesCome) {
  std::string bytes;
  unsigned state = 7;
  for (int i = 0; i < 20'000; ++i) {
    state = state * 1664525 + 1013904223;
    const char* const common = "\xe2\x88\x9e\xf0\x9f\xed\xa0\xc3\xf4\xe0\x80";
    bytes += state >> 31 != 0 ? static_cast<char>(state >> 20) : common[(state >> 20) % 11];
  }
  Utf8Stream stream;
  std::string text;
  for (char byte : bytes) text += stream.take({&byte, 1});
  text += stream.finish();
  EXPECT_EQ(text, valid_utf8(bytes));
  EXPECT_EQ(valid_utf8(text), text);
}

}  // namespace
}  // namespace lockstep::data
