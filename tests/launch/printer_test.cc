#include "launch/output_relay.h"

#include <gtest/gtest.h>

#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "sys/file_descriptor.h"

namespace lockstep::launch {
namespace {

// A printer on a file; streams 0 and 1 belong to rank 0, 2 and 3 to rank 1.
struct PrinterTest : testing::Test {
  sys::FileDescriptor file{::memfd_create("printed", MFD_CLOEXEC)};
  Sink sink{file.get()};
  OpenLine open;
  Printer printer{sink, open, PrefixStyle::rank};

  std::string printed() const {
    std::string text(1 << 20, '\0');
    text.resize(static_cast<std::size_t>(::pread(file.get(), text.data(), text.size(), 0)));
    return text;
  }
};

TEST_F(PrinterTest, EachLineGetsItsRank) {
  printer.print(0, 0, "a\nb\n");
  printer.print(2, 1, "c\n");
  EXPECT_EQ(printed(), "[rank 0] a\n[rank 0] b\n[rank 1] c\n");
}

TEST_F(PrinterTest, AnUnfinishedLineIsContinuedByItsOwnStream) {
  printer.print(0, 0, "a");
  printer.print(0, 0, "b\nc");
  printer.print(0, 0, "\n");
  EXPECT_EQ(printed(), "[rank 0] ab\n[rank 0] c\n");
}

TEST_F(PrinterTest, AnotherStreamBeginsOnANewLine) {
  printer.print(0, 0, "Password: ");
  printer.print(2, 1, "hello\n");
  printer.print(0, 0, "more\n");
  printer.print(1, 0, "x");
  printer.say("lockstep run: words");
  EXPECT_EQ(
      printed(),
      "[rank 0] Password: \n[rank 1] hello\n[rank 0] more\n[rank 0] x\nlockstep run: words\n");
}

TEST_F(PrinterTest, ProgressBarsStayOnTheirLine) {
  printer.print(0, 0, "10%\r20%\r\nend\n");
  EXPECT_EQ(printed(), "[rank 0] 10%\r[rank 0] 20%\r\n[rank 0] end\n");
}

TEST_F(PrinterTest, WithoutPrefixesBytesAreUnchanged) {
  Printer plain(sink, open, PrefixStyle::none);
  const std::string bytes("\0\r\nx", 4);
  plain.print(0, 0, bytes);
  plain.print(2, 1, "y");
  plain.print(0, 0, "z");
  EXPECT_EQ(printed(), bytes + "yz");
}

TEST(Unfinished, BeginsAfterTheLastLineEnd) {
  EXPECT_EQ(unfinished(""), 0U);
  EXPECT_EQ(unfinished("abc"), 0U);
  EXPECT_EQ(unfinished("abc\n"), 4U);
  EXPECT_EQ(unfinished("a\nbc"), 2U);
  EXPECT_EQ(unfinished("a\rbc"), 2U);
  EXPECT_EQ(unfinished("a\nb\r"), 2U);  // the '\n' of "\r\n" may follow
}

}  // namespace
}  // namespace lockstep::launch
