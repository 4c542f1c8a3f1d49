#include "launch/run_report.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include <sys/stat.h>

#include "launch/run_agent.h"
#include "support/processes.h"
#include "support/python.h"
#include "support/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

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
  spec.environment.emplace_back("TORCHELASTIC_ERROR_FILE", folder / "parent.json");
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

}  // namespace
}  // namespace lockstep::launch
