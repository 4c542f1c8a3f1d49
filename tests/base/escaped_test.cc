#include "base/escaped.h"

#include "support/fuzz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lockstep {
namespace {

TEST(Visible, TextStaysAsItIs) {
  EXPECT_EQ(escaped(""), "");
  EXPECT_EQ(escaped("transformer.h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
  EXPECT_EQ(escaped("größe 重み \U0001F600"), "größe 重み \U0001F600");
}

TEST(Visible, WhatATerminalWouldObeyIsEscaped) {
  EXPECT_EQ(escaped("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(escaped("\x1b[31m"), "\\x1b[31m");
  EXPECT_EQ(escaped(std::string_view("a\0b\x7f", 4)), "a\\x00b\\x7f");
  EXPECT_EQ(escaped("\u009b31m"), "\\u{9b}31m");  // C1: equivalent to ESC [
  EXPECT_EQ(escaped("a\u202eb\u200b\u2028\ufeff"), "a\\u{202e}b\\u{200b}\\u{2028}\\u{feff}");
}

TEST(Visible, BytesThatAreNoTextAreEscaped) {
  EXPECT_EQ(escaped("\xff"
                    "a\xc3"),
            "\\xffa\\xc3");
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

TEST(Visible, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(escaped("abcdef", 6), "abcdef");
  EXPECT_EQ(escaped("abcdef", 5), "abcde... (6 bytes)");
  EXPECT_EQ(escaped("äöü", 2), "äö... (6 bytes)");
  EXPECT_EQ(escaped("a\nb", 2), "a... (3 bytes)");
  EXPECT_EQ(escaped(std::string(10 << 20, 'x'), 3), "xxx... (10485760 bytes)");
}

TEST(Shortened, SaysThatThereWasMore) {
  EXPECT_EQ(shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(shortened("abcdefg", 6), "abc...");
  EXPECT_EQ(shortened("aäöü", 6), "aä...");
  EXPECT_EQ(shortened("äöüä", 7), "äö...");
  EXPECT_EQ(shortened("äöüä", 6), "ä...");
  EXPECT_EQ(shortened("abcd", 3), "...");
}

TEST(VisibleFuzz, AnyBytesBecomeOneShortLine) {
  for (test::FuzzRounds rounds("visible"); rounds.next();) {
    const std::string bytes =
        test::random_bytes(rounds.random(), test::below(rounds.random(), 300));
    const std::string shown = escaped(bytes, 100);
    auto is_control = [](unsigned char byte) { return byte < 32 || byte == 127; };
    EXPECT_EQ(std::ranges::count_if(shown, is_control), 0);
    EXPECT_EQ(escaped(shown, 1000), shown);
    EXPECT_LE(shown.size(), 4 * 100 + 20u);
  }
}

TEST(VisibleLine, KeepsTabsAndItsWholeLength) {
  EXPECT_EQ(escaped_line("\tat x\x1b[2J\n"), "\tat x\\x1b[2J\\n");
  EXPECT_EQ(escaped_line(std::string(5000, 'x')), std::string(5000, 'x'));
}

TEST(VisibleLine, IsCutBetweenCharactersWithinItsBytes) {
  EXPECT_EQ(escaped_line("abcdef", 6), "abcdef");
  EXPECT_EQ(escaped_line("abcdef", 5), "ab...");
  EXPECT_EQ(escaped_line("äöü", 5), "ä...");
  EXPECT_EQ(escaped_line("a\x1b\x1b", 8), "a\\x1b...");
}

TEST(VisibleFuzz, AnyBytesFitAndStayAsTheyAreThen) {
  for (test::FuzzRounds rounds("visible_line"); rounds.next();) {
    const std::string bytes =
        test::random_bytes(rounds.random(), test::below(rounds.random(), 300));
    const std::string shown = escaped_line(bytes, 100);
    EXPECT_LE(shown.size(), 100u);
    EXPECT_EQ(escaped_line(shown, 100), shown);
  }
}

TEST(ShellWord, IsQuotedWhereAShellNeedsIt) {
  EXPECT_EQ(shell_word("out/run-1.b=c"), "out/run-1.b=c");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("my data"), "'my data'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word("a;b"), "'a;b'");
  EXPECT_EQ(shell_word("größe"), "'größe'");
}

}  // namespace
}  // namespace lockstep
