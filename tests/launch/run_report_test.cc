#include "launch/run_report.h"

#include "launch/environment.h"
#include "launch/run_agent.h"
#include "rank_env/rank_ends.h"
#include "support/processes.h"
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

TEST(Report, NamesTheCauseItsLastLinesAndTheOthers) {
  const RunFailure report{
      .cause = {.rank = 1, .pid = 77, .exit_code = 3, .how = "exit code 3", .after = 90s},
      .ranks = 4,
      .at = "12:00:01",
      .last_lines = {"Traceback", "ValueError: x"},
      .log_file = "logs/rank-1.log",
      .others = {{.rank = 2, .how = "exit code 1"},
                 {.rank = 3, .how = "killed by signal 15 (SIGTERM)"},
                 {.rank = 0, .how = "exit code 1"}}};
  EXPECT_EQ(
      describe(report),
      (Lines{"rank 1 of 4 (pid 77) ended with exit code 3 at 12:00:01, after 1m30s",
             "its last lines:", "  | Traceback", "  | ValueError: x", "its log: logs/rank-1.log",
             "the others ended after it: ranks 0, 2: exit code 1; rank 3: killed by signal 15 "
             "(SIGTERM)"}));
}

TEST(Report, AFailureThatWasShownOfTheCauseAloneIsNoLineMore) {
  SharedFailures failures;
  static_cast<void>(failures.take(1, "lockstep eval: no such file\n"));
  RunFailure report{.cause = {.rank = 1, .pid = 7, .exit_code = 1, .how = "exit code 1"},
                    .ranks = 2,
                    .at = "12:00:01",
                    .last_lines = {"lockstep eval: no such file"},
                    .shared = &failures,
                    .recorded = {"no such file"},
                    .others = {{.rank = 0, .how = "exit code 1"}},
                    .ended_together = true};
  EXPECT_EQ(
      describe(report),
      (Lines{"rank 1 of 2 (pid 7) ended with exit code 1 at 12:00:01, after 0s, as shown above",
             "the others ended with it: rank 0: exit code 1"}));
}

TEST(Report, HasAWitnessWhereTheCauseIsSilent) {
  const RunFailure report{.cause = {.rank = 0, .pid = 7, .exit_code = 1, .how = "exit code 1"},
                          .ranks = 2,
                          .at = "12:00:01",
                          .witness = Witness{{.rank = 1, .how = "exit code 1"}, {"ValueError: x"}},
                          .others = {{.rank = 1, .how = "exit code 1"}}};
  EXPECT_EQ(describe(report),
            (Lines{"rank 0 of 2 (pid 7) ended with exit code 1 at 12:00:01, after 0s",
                   "it had printed nothing", "rank 1 ended with exit code 1 and had said:",
                   "  | ValueError: x", "the others ended after it: rank 1: exit code 1"}));
}

TEST(Report, ASilentRankAlone) {
  const RunFailure report{.cause = {.rank = 0,
                                    .pid = 5,
                                    .exit_code = 137,
                                    .how = "killed by signal 9 (SIGKILL)",
                                    .after = 250ms},
                          .ranks = 1,
                          .at = "00:00:00",
                          .last_lines = {},
                          .log_file = {},
                          .others = {}};
  EXPECT_EQ(describe(report),
            (Lines{"rank 0 of 1 (pid 5) was killed by signal 9 (SIGKILL) at 00:00:00, after 250ms",
                   "it had printed nothing"}));
}

const WorkerFailure killed_worker{
    .end = {.rank = 3, .pid = 77, .exit_code = 137, .how = "killed by signal 9 (SIGKILL)"},
    .round = 2,
    .host = "b",
    .last_lines = {"one", "two"}};

TEST(ErrorFile, SaysWhatTheAgentKnows) {
  EXPECT_EQ(error_text(killed_worker, "", 1760000000),
            R"x({"message":{"errorCode":-9,"extraInfo":{"exitcode":-9,"host":"b","pid":77,)x"
            R"x("py_callstack":"one\ntwo","rank":3,"round":2,"timestamp":"1760000000"},)x"
            R"x("message":"rank 3 (host b, pid 77) in round 2: killed by signal 9 (SIGKILL)"}})x");
}

TEST(ErrorFile, KeepsWhatTheRankHasWritten) {
  const std::string info = R"x("extraInfo":{"py_callstack":"T","timestamp":"5"})x";
  const std::string text = R"x("message":"ValueError: no")x";
  EXPECT_EQ(error_text(killed_worker, R"x({"message":{)x" + text + "," + info + "}}", 9),
            R"x({"message":{"errorCode":-9,)x" + info + "," + text + "}}");
  EXPECT_EQ(error_text(killed_worker, R"x({"message":"short"})x", 9), R"x({"message":"short"})x");
}

TEST(ErrorFile, NonsenseIsNoErrorFile) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "error.json";
  for (const std::string text :
       {"", "{", "[1]", "{\"message\"", "null", "{\"other\": 1}", "\xff\xfe", "{\"message\": 3}"}) {
    std::ofstream(file, std::ios::trunc) << text;
    EXPECT_TRUE(recorded_error(file).empty()) << text;
  }
  std::ofstream(file, std::ios::trunc) << "{\"message\": \"" << std::string(2 << 20, 'x') << "\"}";
  EXPECT_TRUE(recorded_error(file).empty()) << "too long";
  std::filesystem::remove(file);
  EXPECT_TRUE(recorded_error(file).empty());
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_TRUE(recorded_error(file).empty()) << "a pipe";
}

constexpr const char* records =
    R"x(printf %s '{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": )x"
    R"x("Traceback\n  line 3\nValueError: no", "timestamp": "5"}}}' > $TORCHELASTIC_ERROR_FILE; )x"
    "exit 4";

TEST(ErrorFile, WhatARankHasRecordedIsInTheReport) {
  const Ran ran = run_agent(shells(1, records));
  EXPECT_EQ(ran.result.exit_code, 4);
  EXPECT_NE(ran.error.find("its error file says:\nlockstep run:   | Traceback\nlockstep run:   |   "
                           "line 3\nlockstep run:   | ValueError: no\n"),
            std::string::npos)
      << ran.error;
}

std::string content_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

TEST(ErrorFile, StaysBesideTheLogsAndGoesToTheParent) {
  const test::TemporaryFolder folder;
  WorkerSpec spec = shells(2, "echo some words; [ $RANK = 0 ] || kill -9 $$; exec sleep 60");
  spec.log_folder = folder / "logs";
  spec.environment.emplace("TORCHELASTIC_ERROR_FILE", folder / "parent.json");
  const Ran ran = run_agent(spec);
  const std::string file = folder / "logs/errors/round-0-rank-1.json";
  EXPECT_NE(ran.error.find("its error file: " + file + "\n"), std::string::npos) << ran.error;
  EXPECT_NE(content_in(file).find("\"exitcode\":-9"), std::string::npos) << content_in(file);
  EXPECT_NE(content_in(file).find(R"x("py_callstack":"some words")x"), std::string::npos);
  EXPECT_EQ(content_in(folder / "parent.json"), content_in(file));
  EXPECT_FALSE(std::filesystem::exists(folder / "logs/errors/round-0-rank-0.json"));
}

TEST(ErrorFile, WithoutLogsNothingIsLeft) {
  const Ran ran = run_agent(shells(1,
                                   "echo x > $TORCHELASTIC_ERROR_FILE; echo "
                                   "$TORCHELASTIC_ERROR_FILE; exit 1"));
  const std::size_t begin = ran.output.find('/');
  const std::filesystem::path file = ran.output.substr(begin, ran.output.find('\n') - begin);
  EXPECT_FALSE(std::filesystem::exists(file.parent_path())) << file;
}

// A run works without error files.
TEST(ErrorFile, AFolderForTemporaryFilesThatTakesNothingIsNoFailure) {
  test::expect_ranks(1, [](int) {
    ::setenv("TMPDIR", "/proc/nowhere", 1);
    const Ran ran = run_agent(shells(1, "echo [$TORCHELASTIC_ERROR_FILE]"));
    EXPECT_EQ(ran.output, "[rank 0] []\n") << ran.error;
    EXPECT_EQ(ran.result.exit_code, 0);
  });
}

TEST(ErrorFile, AnythingButAFileStaysAsItIs) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder / "pipe", link = folder / "link", target = folder / "target";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("target", link);
  EXPECT_EQ(write_error_files(killed_worker, "", true, pipe),
            "cannot write the error file " + pipe + ": expected a file or nothing");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(write_error_files(killed_worker, "", true, link), "");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_NE(content_in(target).find("\"exitcode\":-9"), std::string::npos);
}

// The reader of torchrun accepts our files.
TEST(ErrorFile, TorchReadsIt) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  const test::TemporaryFolder folder;
  const std::string file = folder / "error.json";
  ASSERT_EQ(write_error_files(killed_worker, file, true, ""), "");
  const test::PythonResult found = test::run_python(
      "import sys\n"
      "from torch.distributed.elastic.multiprocessing.errors import ProcessFailure, "
      "ChildFailedError\n"
      "f = ProcessFailure(local_rank=1, pid=77, exitcode=-9, error_file=sys.argv[1])\n"
      "print(f.timestamp > 0, f.message['message'])\n"
      "print('two' in str(ChildFailedError('train', {3: f})))\n",
      {file});
  EXPECT_EQ(found.output,
            "True rank 3 (host b, pid 77) in round 2: killed by signal 9 (SIGKILL)\nTrue\n");
}

class OwnFailure : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv(variable::error_file); }
};

TEST_F(OwnFailure, IsReadByTheAgent) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "error.json";
  ::setenv(variable::error_file, file.c_str(), 1);
  rank_env::record_own_failure("first");
  rank_env::record_own_failure("data.bin: \"no\" room \xff");
  EXPECT_EQ(recorded_error(file), std::vector<std::string>{"data.bin: \"no\" room \xef\xbf\xbd"});
}

TEST_F(OwnFailure, IsKeptByNobodyWithoutALauncherOrWithoutAFolder) {
  ::unsetenv(variable::error_file);
  rank_env::record_own_failure("unheard");
  const test::TemporaryFolder folder;
  const std::string file = folder / "absent" / "error.json";
  ::setenv(variable::error_file, file.c_str(), 1);
  rank_env::record_own_failure("unheard");
  EXPECT_TRUE(recorded_error(file).empty());
}

}  // namespace
}  // namespace lockstep::launch
