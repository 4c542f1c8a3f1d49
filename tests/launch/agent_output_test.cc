#include "launch/agent.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include "launch/run_agent.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "sys/file_descriptor.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

std::string content(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream) << file;
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::size_t count(const std::string& text, char what) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), what));
}

TEST(AgentOutput, StreamsAreKeptApart) {
  const Ran ran = run_agent(shells(1, "echo to-output; echo to-error >&2"));
  EXPECT_EQ(ran.output, "[rank 0] to-output\n");
  EXPECT_EQ(ran.error, "[rank 0] to-error\n");
}

// Rank 0 reports for all ranks that fail together, and another rank may end first.
TEST(AgentOutput, TheReportShowsTheReasonAndNotWhoWasSilent) {
  const test::TemporaryFolder folder;
  const std::string first = folder / "first";
  const std::string rank_1_first = "[ $RANK = 1 ] && { echo loss 0.3; touch " + first +
                                   "; exit 1; }; " + until("[ -e " + first + " ]") + "sleep 0.3; ";
  const Ran ours =
      run_agent(shells(2, rank_1_first + "echo 'lockstep eval: no such file' >&2; exit 1"));
  EXPECT_EQ(ours.result.exit_code, 1);
  EXPECT_EQ(ours.result.cause->rank, 0);
  EXPECT_NE(ours.error.find(", as shown above\n"), std::string::npos) << ours.error;
  EXPECT_EQ(ours.error.find("loss"), std::string::npos) << ours.error;
  EXPECT_NE(ours.error.find("the others ended with it: rank 1: exit code 1\n"), std::string::npos)
      << ours.error;

  // In a program other than ours, the message of rank 0 may only be about the failure of rank 1.
  const Ran other = run_agent(shells(2, rank_1_first + "echo ValueError: x >&2; exit 3"));
  EXPECT_EQ(other.result.exit_code, 1);
  EXPECT_EQ(other.result.cause->rank, 1);
  EXPECT_NE(other.error.find("rank 0 ended with exit code 3 and had said:\nlockstep run:   | "
                             "ValueError: x\n"),
            std::string::npos)
      << other.error;
}

TEST(AgentOutput, KeepsItsOrderWithinARank) {
  const Ran ran = run_agent(shells(3, "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done"));
  std::istringstream lines(ran.output);
  int next[3] = {0, 0, 0}, rank = 0, number = 0;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_EQ(std::sscanf(line.c_str(), "[rank %d] %d", &rank, &number), 2) << line;
    EXPECT_EQ(number, next[rank]++);
  }
  for (int seen : next) EXPECT_EQ(seen, 2000);
}

TEST(AgentOutput, ALogThatIsNoRegularFileIsRefusedAtOnce) {
  for (const bool fifo : {true, false}) {
    const test::TemporaryFolder folder;
    const std::string log = folder / "rank-0.log";
    if (fifo) {
      ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
    } else {
      std::filesystem::create_symlink("/dev/null", log);
    }
    WorkerSpec spec = shells(1, "echo word");
    spec.log_folder = folder.path().string();
    try {
      run_agent(spec);
      FAIL() << "it ran";
    } catch (const BadInput& error) {
      EXPECT_EQ(error.what(), "the log " + log +
                                  ": expected a regular file, found a FIFO, a socket or a device; "
                                  "remove it, or name another log folder");
    }
  }
}

// The limit applies to the agent and its ranks; the rank's own output is a pipe.
TEST(AgentOutput, ALogThatMayNotGrowFurtherIsSaidAndTheRankGoesOn) {
  const test::TemporaryFolder folder;
  test::expect_ranks(1, [&](int) {
    const rlimit limit{20 << 10, 20 << 10};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    WorkerSpec spec = shells(1,
                             "i=0; while [ $i -lt 2000 ]; do echo 0123456789012345; "
                             "i=$((i+1)); done >&2; echo end");
    spec.log_folder = folder.path().string();
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ::fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    spec.output = spec.error = ends[1];
    EXPECT_EQ(Agent(spec).run().exit_code, 0);
    std::string text(1 << 20, '\0');
    text.resize(static_cast<std::size_t>(::read(ends[0], text.data(), text.size())));
    EXPECT_NE(text.find("rank-0.log: File too large; the rank continues without it"),
              std::string::npos);
    EXPECT_NE(text.find("[rank 0] end\n"), std::string::npos);
  });
}

// Standard output is a pipe without a reader.
TEST(AgentOutput, AReaderThatTakesNothingDoesNotHoldTheAgentForEver) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const sys::FileDescriptor from(ends[0]), to(ends[1]);
  const Screen error;
  WorkerSpec spec = shells(1, "head -c 300000 /dev/zero; exit 5");
  spec.prefix = PrefixStyle::none;
  spec.output = to.get();
  spec.error = error.descriptor();
  spec.output_timeout = 300ms;
  const auto begin = Clock::now();
  EXPECT_EQ(Agent(spec).run().exit_code, 5);
  EXPECT_LT(Clock::now() - begin, far_too_long);
  EXPECT_NE(
      error.text().find("lockstep run: the reader of standard output read nothing for 300ms: "),
      std::string::npos)
      << error.text();
  EXPECT_NE(error.text().find(" KiB were dropped\n"), std::string::npos) << error.text();
}

TEST(AgentOutput, TheReportsLinesActOnNoTerminal) {
  const Ran ran = run_agent(shells(1, "printf '\\033]0;x\\007 \\302\\233 2J\\n'; exit 3"));
  EXPECT_NE(ran.error.find("lockstep run:   | \\x1b]0;x\\x07 \\u{9b} 2J\n"), std::string::npos)
      << ran.error;
}

TEST(AgentOutput, LogsHoldTheBytesUnchanged) {
  const test::TemporaryFolder folder;
  const std::string logs = folder / "deep/er";
  std::filesystem::create_directories(logs);
  std::ofstream(logs + "/rank-0.log") << "from an earlier run";
  WorkerSpec spec = shells(2, "printf 'a\\000b\\r\\n\\033[1mlast %s' $RANK");
  spec.log_folder = logs;
  const Ran ran = run_agent(spec);
  for (int rank : {0, 1}) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(content(logs + "/rank-" + number + ".log"),
              std::string("a\0b\r\n\033[1mlast ", 14) + number);
  }
}

TEST(AgentOutput, AFailureNamesItsLog) {
  const test::TemporaryFolder folder;
  WorkerSpec spec = shells(2, "exit $RANK");
  spec.log_folder = folder.path();
  EXPECT_NE(run_agent(spec).error.find("its log: " + (folder / "rank-1.log").string()),
            std::string::npos);
}

TEST(AgentOutput, AFolderThatCannotBeMadeIsAnErrorBeforeAnythingStarts) {
  const test::TemporaryFolder folder;
  WorkerSpec spec = shells(2, "touch " + (folder / "started").string());
  spec.log_folder = "/dev/null/logs";
  EXPECT_THROW(run_agent(spec), SystemError);
  EXPECT_FALSE(std::filesystem::exists(folder / "started"));
}

TEST(AgentOutput, WithoutPrefixesBytesAreUnchanged) {
  WorkerSpec spec = shells(1, "printf 'a\\000b\\r\\nlast'");
  spec.prefix = PrefixStyle::none;
  EXPECT_EQ(run_agent(spec).output, std::string("a\0b\r\nlast", 9));
}

TEST(AgentOutput, AnUnfinishedLastLineIsShown) {
  const Ran ran = run_agent(shells(2, "printf 'last %s' $RANK"));
  EXPECT_NE(ran.output.find("[rank 0] last 0"), std::string::npos);
  EXPECT_NE(ran.output.find("[rank 1] last 1"), std::string::npos);
}

TEST(AgentOutput, AQuestionIsShownBeforeItsLineEnds) {
  const test::TemporaryFolder folder;
  const Screen output, error;
  WorkerSpec spec = shells(1, "printf 'Continue? '; while [ ! -e " + (folder / "answer").string() +
                                  " ]; do sleep 0.02; done");
  spec.output = output.descriptor();
  spec.error = error.descriptor();
  std::thread user([&] {
    const Deadline limit = Deadline::after(20s);
    while (output.text() != "[rank 0] Continue? " && !limit.passed())
      std::this_thread::sleep_for(10ms);
    EXPECT_EQ(output.text(), "[rank 0] Continue? ");
    std::ofstream(folder / "answer") << "yes";
  });
  EXPECT_EQ(Agent(spec).run().exit_code, 0);
  user.join();
}

TEST(AgentOutput, ALineThatABufferCutsInTwoIsShownWhole) {
  // Rank 0 stops after 4096 bytes, in the middle of a line, until rank 1 has printed.
  const test::TemporaryFolder folder;
  const std::string begun = folder / "begun", printed = folder / "printed";
  const Ran ran =
      run_agent(shells(2,
                       "await() { while [ ! -e $1 ]; do sleep 0.01; done; }; "
                       "if [ $RANK = 0 ]; then head -c 4096 /dev/zero | tr '\\000' x; touch " +
                           begun + "; await " + printed + "; echo y; else await " + begun +
                           "; echo z; touch " + printed + "; fi"));
  const std::string whole = "[rank 0] " + std::string(4096, 'x') + "y\n", other = "[rank 1] z\n";
  // A delayed agent finds both lines complete and prints them in any order.
  EXPECT_TRUE(ran.output == other + whole || ran.output == whole + other) << ran.output;
}

TEST(AgentOutput, EndlessLinesTakeBoundedMemoryAndLoseNothing) {
  const test::TemporaryFolder folder;
  WorkerSpec spec = shells(2, "head -c 5000000 /dev/zero | tr '\\000' x");
  spec.log_folder = folder.path();
  const Ran ran = run_agent(spec);
  EXPECT_EQ(count(ran.output, 'x'), 10'000'000U);
  for (const char* name : {"rank-0.log", "rank-1.log"})
    EXPECT_EQ(content(folder / name), std::string(5'000'000, 'x'));
}

TEST(AgentOutput, ASlowReaderSlowsTheRanksAndLosesNothing) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const sys::FileDescriptor read_end(ends[0]);
  sys::FileDescriptor write_end(ends[1]);
  std::string received;
  std::thread reader([&] {
    char buffer[1 << 16];
    std::this_thread::sleep_for(200ms);
    for (ssize_t size; (size = ::read(read_end.get(), buffer, sizeof(buffer))) > 0;)
      received.append(buffer, size);
  });
  const Screen error;
  WorkerSpec spec = shells(2, "seq 400000");  // 2.7 MB each: more than the pipes and buffers hold
  spec.output = write_end.get();
  spec.error = error.descriptor();
  EXPECT_EQ(Agent(spec).run().exit_code, 0);
  write_end.reset();
  reader.join();
  EXPECT_EQ(count(received, '\n'), 800'000U);
}

TEST(AgentOutput, AReaderThatLeavesIsSaidAndTheRanksGoOn) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  const sys::FileDescriptor write_end(ends[1]);
  const test::TemporaryFolder folder;
  const Screen error;
  WorkerSpec spec = shells(2, "for i in 1 2 3; do echo $i; sleep 0.05; done");
  spec.output = write_end.get();
  spec.error = error.descriptor();
  spec.log_folder = folder.path();
  EXPECT_EQ(Agent(spec).run().exit_code, 0);
  EXPECT_EQ(error.text(),
            "lockstep run: standard output is closed (Broken pipe); the ranks continue, and their "
            "output is only in their logs\n");
  EXPECT_EQ(content(folder / "rank-1.log"), "1\n2\n3\n");
}

TEST(AgentOutput, AReaderThatLeavesStopsTheRanksWhereThatIsAsked) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  const sys::FileDescriptor write_end(ends[1]);
  const test::TemporaryFolder folder;
  const Screen error;
  WorkerSpec spec = shells(2, "trap 'exit 5' PIPE; cd " + folder.path().string() +
                                  "; : > $RANK; until [ -e 0 ] && [ -e 1 ]; do sleep 0.02; done; "
                                  "echo 1; while :; do sleep 0.05; done");
  spec.output = write_end.get();
  spec.error = error.descriptor();
  spec.stop_without_reader = true;
  EXPECT_EQ(Agent(spec).run().exit_code, 5);
  EXPECT_EQ(error.text(),
            "lockstep run: standard output is closed (Broken pipe); stopping the ranks\nlockstep "
            "run: stopped by SIGPIPE; ranks 0, 1: exit code 5\n");
}

// Unlike a reader that has left, a full disk may have room later.
TEST(AgentOutput, AFullDiskIsSaidAndTheRanksGoOn) {
  const sys::FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const test::TemporaryFolder folder;
  for (const bool stops : {false, true}) {
    const Screen error;
    WorkerSpec spec = shells(2, "for i in 1 2 3; do echo $i; sleep 0.05; done");
    spec.output = full.get();
    spec.error = error.descriptor();
    spec.log_folder = folder.path();
    spec.stop_without_reader = stops;
    EXPECT_EQ(Agent(spec).run().exit_code, 0);
    EXPECT_EQ(error.text(),
              "lockstep run: cannot write to standard output (No space left on device); the ranks "
              "continue, and what does not fit is only in their logs\n");
    EXPECT_EQ(content(folder / "rank-1.log"), "1\n2\n3\n");
  }
}

}  // namespace
}  // namespace lockstep::launch
