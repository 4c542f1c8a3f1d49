#include "launch/output_relay.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using Lines = std::vector<std::string>;

TEST(LastLines, KeepsTheNewestInOrder) {
  LastLines last;
  for (int i = 0; i < 30; ++i) last.add(0, "line " + std::to_string(i) + "\n");
  EXPECT_EQ(last.lines(3), (Lines{"line 27", "line 28", "line 29"}));
  EXPECT_EQ(last.lines(100).size(), 30U);
}

TEST(LastLines, NothingPrintedIsNoLine) { EXPECT_EQ(LastLines().lines(5), Lines{}); }

TEST(LastLines, AnUnfinishedLineCountsAndEmptyOnesStay) {
  LastLines last;
  last.add(0, "a\n\nb");
  EXPECT_EQ(last.lines(9), (Lines{"a", "", "b"}));
}

TEST(LastLines, StreamsDoNotRunIntoEachOther) {
  LastLines last;
  last.add(0, "output");
  last.add(1, "error\n");
  last.add(0, " goes on\n");
  EXPECT_EQ(last.lines(9), (Lines{"output", "error", " goes on"}));
}

TEST(LastLines, AProgressBarShowsItsLastState) {
  LastLines last;
  last.add(0, "\r10%\r20%\r30%\ndone\r\n");
  EXPECT_EQ(last.lines(9), (Lines{"30%", "done"}));
}

TEST(LastLines, BinaryAndEndlessOutputAreMadeFit) {
  LastLines last;
  last.add(0, std::string("a\x1b[31mb\0c\n", 9));
  last.add(0, std::string(1 << 20, 'x'));
  const Lines lines = last.lines(9);
  ASSERT_FALSE(lines.empty());
  EXPECT_LT(lines.back().size(), 600U);
  EXPECT_TRUE(lines.back().ends_with("x..."));

  LastLines binary;
  binary.add(0, std::string("a\x1b[31mb\0c\n", 9));
  EXPECT_EQ(binary.lines(1), (Lines{"a\\x1b[31mb\\x00c"}));
}

}  // namespace
}  // namespace lockstep::launch
