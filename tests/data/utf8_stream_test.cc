#include "data/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::data {
namespace {

const std::string wrong = "\xef\xbf\xbd";

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
