#include "launch/output_relay.h"

#include "launch/run_agent.h"
#include "launch/run_report.h"
#include "launch/signals.h"
#include "support/temporary_folder.h"
#include "sys/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <string_view>

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
  printer.log_line("lockstep run: words");
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

struct SinkTest : testing::Test {
  SinkTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  std::string read_some() {
    std::string text(1 << 17, '\0');
    const ssize_t size = ::read(read_end.get(), text.data(), text.size());
    text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return text;
  }
  sys::FileDescriptor read_end, write_end;
  SignalActions actions;
};

TEST_F(SinkTest, AReaderThatWaitsDoesNotBlockTheWriterAndLosesNothing) {
  Sink sink(write_end.get());
  std::string sent;
  for (int i = 0; i < 40'000; ++i) sent += std::to_string(i) + "\n";
  sink.write(sent);  // more than a pipe holds, and the pipe is in blocking mode
  EXPECT_GT(sink.pending(), 0U);
  std::string received;
  while (received.size() < sent.size()) {
    received += read_some();
    sink.flush();
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(sink.pending(), 0U);
  EXPECT_EQ(::fcntl(write_end.get(), F_GETFL) & O_NONBLOCK,
            0);  // the flags of the shell's terminal are unchanged
}

TEST_F(SinkTest, IsFullBeforeItTakesMuchMemory) {
  Sink sink(write_end.get());
  EXPECT_FALSE(sink.full());
  sink.write(std::string(2 << 20, 'x'));
  EXPECT_TRUE(sink.full());
}

TEST_F(SinkTest, AReaderThatHasGoneIsRememberedAndNoLongerWrittenTo) {
  Sink sink(write_end.get());
  read_end.reset();
  sink.write("lost\n");
  EXPECT_EQ(sink.lost(), EPIPE);
  sink.write(std::string(2 << 20, 'x'));
  EXPECT_EQ(sink.pending(), 0U);
}

TEST_F(SinkTest, KnowsWhenTwoDescriptorsAreOnePlace) {
  const sys::FileDescriptor again(::dup(write_end.get()));
  const sys::FileDescriptor file(::memfd_create("other", MFD_CLOEXEC));
  EXPECT_TRUE(Sink(write_end.get()).same_place(Sink(again.get())));
  EXPECT_FALSE(Sink(write_end.get()).same_place(Sink(file.get())));
}

TEST(Sink, AClosedDescriptorIsLostFromTheStart) {
  Sink sink(-1);
  EXPECT_EQ(sink.lost(), EBADF);
  sink.write("nothing happens");
}

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

using namespace std::chrono_literals;

// All hot spares have the same rank, -1.
TEST(RankOutput, LinesOfHotSparesAreKeptApart) {
  const Screen screen;
  Sink sink(screen.descriptor());
  OpenLine open;
  Printer printer(sink, open, PrefixStyle::rank);
  SharedFailures failures;
  RankOutput one(-1, printer, printer, failures, {}), other(-1, printer, printer, failures, {});
  const auto writes = [](RankOutput& output, std::string_view text) {
    ASSERT_EQ(::write(output.rank_error(), text.data(), text.size()), std::ssize(text));
    output.read(1, Clock::now());
    output.show_unfinished(Clock::now() + 1s);
  };
  writes(one, "a question: ");
  writes(other, "another: ");
  writes(other, "goes on\n");
  writes(one, "next\n");
  EXPECT_EQ(screen.text(),
            "[hot spare] a question: \n[hot spare] another: goes on\n[hot spare] next\n");
}

// Messages of several ranks about one failure, and the part of them that is shown.
const std::string sentence = "after 1s: rank 3 never called all_reduce #7 that ranks 0-2 wait in";

std::string marked(int rank) {
  const std::string number = std::to_string(rank);
  return "12:00:00.000 [rank " + number + "] error: " + rank_env::failure_mark + sentence +
         rank_env::flight_record_mark + "/x/flight-rank-" + number + ".json\n";
}

TEST(SharedFailures, TheSentenceIsShownOnce) {
  SharedFailures failures;
  EXPECT_EQ(failures.take(2, marked(2)), marked(2));
  EXPECT_EQ(failures.take(0, marked(0)), "");
  EXPECT_EQ(failures.take(1, "loss 0.3\n" + marked(1) + "bye\n"), "loss 0.3\nbye\n");
  EXPECT_EQ(failures.take(2, marked(2)), "");
  ASSERT_EQ(failures.failures().size(), 1U);
  EXPECT_EQ(failures.failures()[0].sentence, sentence);
  EXPECT_EQ(failures.failures()[0].ranks, (std::vector<int>{2, 0, 1}));
}

TEST(SharedFailures, SoIsWhatTheProgramSaysOfItAfterwards) {
  SharedFailures failures;
  const std::string uncaught =
      "terminate called after throwing an instance of 'lockstep::Timeout'\n  what():  " + sentence +
      "\n";
  EXPECT_EQ(failures.take(0, uncaught), uncaught) << "of a failure that nobody marked";
  EXPECT_EQ(failures.take(0, marked(0)), marked(0));
  EXPECT_EQ(failures.take(0, uncaught), "");
  EXPECT_EQ(failures.take(1, sentence + "\n"), "");
  EXPECT_EQ(failures.take(1, "lockstep train: rank 1: " + sentence + "\n"), "");
  EXPECT_EQ(failures.take(1, "my_program: another sentence"), "my_program: another sentence");
}

TEST(SharedFailures, WhatAProgramPutsBeforeTheSentenceIsShownOnce) {
  SharedFailures failures;
  static_cast<void>(failures.take(0, marked(0)));
  const std::string own = "my_program, step 7: all_reduce on group world: " + sentence + "\n";
  EXPECT_EQ(failures.take(1, own), own);
  EXPECT_EQ(failures.take(2, own), "");
  EXPECT_EQ(failures.take(0, own), "");
  const std::string other = "my_program, step 8: all_reduce on group world: " + sentence + "\n";
  EXPECT_EQ(failures.take(2, other), other);
}

// In our own programs, if all ranks get the same error and no group has failed.
TEST(SharedFailures, WhatOurProgramsComplainOfIsShownOnce) {
  SharedFailures failures;
  const std::string missing = "expected a file or a folder, found nothing\n";
  EXPECT_EQ(failures.take(1, "lockstep eval: " + missing), "lockstep eval: " + missing);
  EXPECT_EQ(failures.take(0, "lockstep eval: " + missing), "");
  EXPECT_EQ(failures.take(2, "lockstep eval: rank 2: " + missing), "");
  EXPECT_EQ(failures.failures()[0].ranks, (std::vector<int>{1, 0, 2}));
  EXPECT_TRUE(failures.has_complained(2));
  EXPECT_FALSE(failures.has_complained(3));
  const std::string other = "lockstep eval: another error\n";
  EXPECT_EQ(failures.take(3, other), other);
  for (const std::string line : {"lockstep run: round 1 begins\n", "my lockstep eval: no\n"})
    for (int rank : {0, 1}) EXPECT_EQ(failures.take(rank, line), line);
  // Ranks that survive another rank's failure report that failure, not an error of their own.
  static_cast<void>(failures.take(4, marked(4)));
  EXPECT_EQ(failures.take(5, "lockstep eval: rank 5: " + sentence + "\n"), "");
  EXPECT_FALSE(failures.has_complained(5));
}

// Lines that merely contain the words of a failure carry other information, too.
TEST(SharedFailures, OtherLinesAreNeverHidden) {
  SharedFailures failures;
  const std::string forged = std::string("error: ") + rank_env::failure_mark + "e\n";
  EXPECT_EQ(failures.take(0, forged), forged);
  EXPECT_TRUE(failures.failures().empty()) << "not a line of the library's log";
  static_cast<void>(failures.take(0, marked(0)));
  for (const std::string& line :
       {sentence + " (see above)\n", "saved before: " + sentence + ", step 7\n",
        "I saw that " + std::string(rank_env::failure_mark) + sentence + " and went on\n",
        std::string("12:00:00.000 [rank 1] warning: ") + rank_env::failure_mark + sentence + ";\n",
        std::string("terminate called after throwing an instance of 'lockstep::X' by me\n")})
    for (int rank : {0, 1}) EXPECT_EQ(failures.take(rank, line), line);
  const std::string short_one =
      std::string("12:00:00.000 [rank 0] error: ") + rank_env::failure_mark + "e\n";
  EXPECT_EQ(failures.take(0, short_one), short_one);
  EXPECT_EQ(failures.take(1, "the end has no e\nbefore\n"), "the end has no e\nbefore\n");
}

TEST(SharedFailures, TwoFailuresAreTwo) {
  SharedFailures failures;
  const std::string other =
      std::string("12:00:00.000 error: ") + rank_env::failure_mark + "rank 1 of 2 was lost\n";
  EXPECT_EQ(failures.take(0, marked(0)), marked(0));
  EXPECT_EQ(failures.take(0, other), other);
  EXPECT_EQ(failures.failures()[1].sentence, "rank 1 of 2 was lost") << "without a record's path";
}

TEST(SharedFailures, TheReportDoesNotRepeatThem) {
  SharedFailures failures;
  for (int rank : {2, 0}) static_cast<void>(failures.take(rank, marked(rank)));
  const RunFailure report{.cause = {.rank = 2, .pid = 71, .exit_code = 1, .how = "exit code 1"},
                          .ranks = 4,
                          .at = "12:00:00",
                          .last_lines = {"step 6", marked(2).substr(0, marked(2).size() - 1)},
                          .shared = &failures,
                          .log_file = {},
                          .others = {}};
  const auto lines = describe(report);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1], "its last lines:");
  EXPECT_EQ(lines[2], "  | step 6");
  EXPECT_EQ(lines[3], "ranks 0, 2 failed as shown above");
}

void touch(const std::filesystem::path& file) { std::ofstream(file) << "{}"; }

TEST(FlightFolder, IsTheLogsOrTheOneNamedOrATemporaryOne) {
  const Environment named{{"A", "1"}, {variable::flight_folder, "/named"}};
  EXPECT_EQ(FlightFolder(named, "logs", "run").path(), "/named");
  EXPECT_EQ(FlightFolder({}, "/logs", "run").path(), "/logs");
  const Environment empty{{variable::flight_folder, ""}};
  const auto temporary = std::filesystem::path(FlightFolder(empty, "", "run-7").path());
  EXPECT_EQ(temporary.filename(), "run-7-flight");
  EXPECT_FALSE(std::filesystem::exists(temporary));
}

TEST(FlightFolder, NamesTheRecordsOfThisRun) {
  test::TemporaryFolder folder;
  const auto old = folder.path() / "flight-rank-3.json";
  touch(old);
  std::filesystem::last_write_time(
      old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  const FlightFolder flight({}, folder.path().string(), "run");
  EXPECT_EQ(flight.records(4), "");
  touch(folder.path() / "flight-rank-0.json");
  EXPECT_EQ(flight.records(4), (folder.path() / "flight-rank-0.json").string());
  touch(folder.path() / "flight-rank-1.json");
  EXPECT_EQ(flight.records(4), (folder.path() / "flight-rank-0.json").string() + " " +
                                   (folder.path() / "flight-rank-1.json").string())
      << "a pattern would also name the one of an earlier run";
  EXPECT_EQ(flight.records(2), (folder.path() / "flight-rank-*.json").string());
}

// A rank may be killed before it renames its record to the final name.
TEST(FlightFolder, ATemporaryOneGoesWithWhatWasHalfWritten) {
  const test::TemporaryFolder folder;
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  const FlightFolder flight({}, "", "run-8");
  before != nullptr ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  ASSERT_EQ(flight.path(), (folder.path() / "run-8-flight").string());
  flight.discard(2);
  std::filesystem::create_directory(flight.path());
  touch(std::filesystem::path(flight.path()) / "flight-rank-0.json");
  touch(std::filesystem::path(flight.path()) / ".flight-rank-1.json.0123456789abcdef.partial");
  flight.discard(2);
  EXPECT_FALSE(std::filesystem::exists(flight.path()));
}

}  // namespace
}  // namespace lockstep::launch
