#include <lockstep/base/visible.h>

#include <gtest/gtest.h>

#include "support/fuzz.h"

namespace lockstep {
namespace {

TEST(Visible, PlainTextStays) {
  EXPECT_EQ(visible(""), "");
  EXPECT_EQ(visible("a\tb \\n 100 %"), "a\tb \\n 100 %");
  EXPECT_EQ(visible("\u00e4\u20ac\U0001f600"), "\u00e4\u20ac\U0001f600");
}

TEST(Visible, ControlCharactersAreWritten) {
  EXPECT_EQ(visible("\x1b[31mred\x1b[0m"), "\\x1b[31mred\\x1b[0m");
  EXPECT_EQ(visible("one\ntwo\r"), "one\\ntwo\\r");
  EXPECT_EQ(visible(std::string_view("\0\a\x7f", 3)), "\\x00\\x07\\x7f");
  EXPECT_EQ(visible("\u009b31m"), "\\u009b31m") << "C1: an escape sequence of one letter";
  EXPECT_EQ(visible("\u202etxt.exe\u2066\u2028"), "\\u202etxt.exe\\u2066\\u2028");
}

TEST(Visible, BytesThatAreNoUtf8AreWritten) {
  EXPECT_EQ(visible("\x9b" "31m"), "\\x9b31m");
  EXPECT_EQ(visible("\xc0\x8a"), "\\xc0\\x8a") << "a line's end, written too long";
  EXPECT_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(visible("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond the last letter";
  EXPECT_EQ(visible("\xe2\x82"), "\\xe2\\x82") << "its end is missing";
}

TEST(Visible, LongTextIsCutBetweenLetters) {
  EXPECT_EQ(visible("abcdef", 6), "abcdef");
  EXPECT_EQ(visible("abcdef", 5), "abcde...");
  EXPECT_EQ(visible("ab\u20ac", 4), "ab...");
  EXPECT_EQ(visible("\n\n\n", 2), "\\n\\n...");
}

TEST(Visible, AnyBytesBecomeOneLineWithoutControlCharacters) {
  for (test::FuzzRounds rounds("visible"); rounds.next();) {
    const std::string text =
        test::random_bytes(rounds.random(), test::below(rounds.random(), 60));
    const std::string shown = visible(text);
    for (unsigned char byte : shown) ASSERT_TRUE((byte >= 32 && byte != 127) || byte == '\t');
    EXPECT_EQ(visible(shown), shown);
  }
}

}  // namespace
}  // namespace lockstep
