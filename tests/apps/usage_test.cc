// All programs share one policy for command lines: an invalid one prints one line on standard error
// and exits with code 2; help and version go to standard output.
#include "apps/command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <sys/stat.h>

#include "support/temporary_folder.h"

namespace lockstep::apps {
namespace {

using Words = std::vector<std::string>;

bool is_built(const std::string& command) {
  return command == "run" || command == "info" ||
         std::filesystem::exists(std::string(LOCKSTEP_PROGRAM_DIR) + "/lockstep-" + command);
}

struct Mistake {
  Words words;
  std::string said;  // after the program's name
};

void expect_refused(const Words& words, const std::string& line) {
  const Finished end = lockstep_command(words);
  EXPECT_EQ(end.status.code, 2) << line;
  EXPECT_EQ(end.error, line + "\n");
  EXPECT_EQ(end.output, "");
}

const Mistake mistakes[] = {
    {{"run", "--rnk", "2", "true"}, "unknown option '--rnk'; did you mean '--ranks'?"},
    {{"run", "-n", "1", "-n", "2", "true"}, "--ranks is given twice: '1' and '2'"},
    {{"run", "--grace"}, "--grace needs a value"},
    {{"run", "-n", "2\n3\033[31m", "true"},
     "--ranks: expected an integer from 1 to 10000, found '2\\n3\\x1b[31m'"},
    {{"info", "--jsn"}, "unknown option '--jsn'; did you mean '--json'?"},
    {{"info", "--json", "--json"}, "--json is given twice"},
    {{"info", "word"}, "unexpected word 'word'"},
    {{"report"}, "name a report: hang"},
    {{"report", "hng"}, "unknown report 'hng'; did you mean 'hang'?"},
    {{"report", "hang"},
     "hang: no file was named: give the flight records, such as flight-rank-*.json"},
    {{"report", "hang", "--all", "x"}, "unknown option '--all'; lockstep report --help lists them"},
    {{"checkpoint"}, "name a command: ls show verify diff"},
    {{"checkpoint", "sow"}, "unknown command 'sow'; did you mean 'show'?"},
    {{"checkpoint", "diff", "a"}, "diff: expected two paths, found 1"},
    {{"checkpoint", "verify"}, "verify: expected at least one path, found none"},
    {{"plan"}, "name a command: pipeline"},
    {{"plan", "pipline"}, "unknown command 'pipline'; did you mean 'pipeline'?"},
    {{"plan", "--stages", "2"}, "unknown option '--stages'; lockstep plan --help lists them"},
    {{"plan pipeline"}, "--schedule is missing: give a name or a CSV file"},
    {{"plan pipeline", "--schedul", "1f1b"},
     "unknown option '--schedul'; did you mean "
     "'--schedule'?"},
    {{"plan pipeline", "--schedule", "1f1"}, "unknown schedule '1f1'; did you mean '1f1b'?"},
    {{"plan pipeline", "--schedule", "1f1b"},
     "--stages is missing: give the number of parts of the model"},
    {{"plan pipeline", "--schedule", "1f1b", "--stages", "2"},
     "--micro-batches is missing: give the number of micro-batches in a step"},
    {{"plan pipeline", "--stages", "0"}, "--stages: expected an integer from 1 to 4096, found '0'"},
    {{"plan pipeline", "--times", "1,2"},
     "--times: expected five numbers F,B,I,W,C from 0 to 1e12, found '1,2'"},
    {{"plan pipeline", "--times", "1,2,nan,1,0"},
     "--times: expected five numbers F,B,I,W,C from 0 to 1e12, found '1,2,nan,1,0'"},
    {{"plan pipeline", "--schedule", "zbv", "--stages", "5", "--micro-batches", "8"},
     "schedule zbv: expected stages in multiples of 2 chunks (stages of a rank), found 5"},
    {{"plan pipeline", "--schedule", "interleaved", "--stages", "6", "--micro-batches", "8"},
     "schedule interleaved: expected micro-batches in multiples of 3 ranks, found 8"},
    {{"plan pipeline", "--schedule", "x.csv", "--stages", "6"},
     "--stages 6 cannot be given with the file x.csv, which has this number itself"},
    {{"train"}, "name a task: gpt llama moe mnist cifar mlp"},
    {{"train", "gtp"}, "unknown task 'gtp'; did you mean 'gpt'?"},
    {{"train", "gpt", "--laers", "3"}, "unknown option '--laers'; did you mean '--layers'?"},
    {{"train", "mnist", "--heads", "3"},
     "--heads is an option of gpt and llama and moe, not of mnist"},
    {{"train", "mnist", "--layers", "3"},
     "--layers is an option of gpt and llama and moe and mlp, not of mnist"},
    {{"train", "mlp", "--steps", "1", "--steps", "2"}, "--steps is given twice: '1' and '2'"},
    {{"train", "mlp", "--out"}, "--out needs a value"},
    {{"train", "mlp", "--learning-rate", "1"},
     "unknown option '--learning-rate'; did you mean '--lr'?"},
    {{"train", "mlp", "--device", "cuda"},
     "--device: expected cpu, because this process sees no GPU; found 'cuda'"},
    {{"train", "mlp", "-n", "many"}, "--ranks: expected an integer, found 'many'"},
    {{"train", "mlp", "--batch", "0"},
     "--batch: expected an integer from 1 to 16777216, found '0'"},
    {{"train", "mlp", "--optimizer", "adam"},
     "--optimizer: unknown value 'adam'; did you mean 'adamw'?"},
    {{"train", "mlp"}, "--out is missing: name a folder for the run"},
    {{"train", "mlp", "-n", "2"}, "--out is missing: name a folder for the run"},
    {{"train", "mlp", "-n", "3", "--out", "/nowhere"},
     "--batch 32 must be divisible by 3 (3 ranks x 1 micro-batch); try --batch 30 or 33"},
    {{"train", "mlp", "--accumulate", "64", "--out", "/nowhere"},
     "--batch 32 must be divisible by 64 (1 rank x 64 micro-batches); try --batch 64"},
    {{"train", "gpt", "--heads", "3", "--data", "x", "--out", "/nowhere"},
     "--width 128 is not a multiple of --heads 3"},
    {{"train", "mlp", "--config", "/"}, "reading /: expected a file, found a folder"},
    {{"generate"}, "RUN is missing: name a run's folder or a file model.safetensors"},
    {{"generate", "run", "--temprature", "1"},
     "unknown option '--temprature'; did you mean '--temperature'?"},
    {{"generate", "run", "--top-k", "-1"},
     "--top-k: expected an integer from 0 to 1099511627776, found '-1'"},
    {{"eval"}, "RUN is missing: name a run's folder or a file model.safetensors"},
    {{"eval", "run", "-n", "0"}, "--ranks: expected an integer from 1 to 4096, found '0'"},
    {{"bench"}, "name a command: collectives"},
    {{"bench", "colectives"}, "unknown command 'colectives'; did you mean 'collectives'?"},
    {{"bench", "--ranks", "2"}, "unknown option '--ranks'; lockstep bench --help lists them"},
    {{"bench collectives", "--rank", "2"}, "unknown option '--rank'; did you mean '--ranks'?"},
    {{"bench collectives", "--op", "allreduce"},
     "--op: unknown value 'allreduce'; did you mean 'all_reduce'?"},
    {{"bench collectives", "--ranks", "100000"},
     "--ranks: expected an integer from 1 to 1024, found '100000'"},
    {{"bench collectives", "--from", "64XB"},
     "--from: expected bytes such as 1KiB, 64MiB or 4096, found '64XB'"},
    {{"bench collectives", "--from", "1MiB", "--to", "1KiB"},
     "--from: expected at most --to, which is 1 KiB, found 1 MiB"},
    {{"bench collectives", "--device", "cuda"},
     "--device: expected cpu, because this process sees no GPU; found 'cuda'"},
    {{"bench collectives", "--backend", "glo"},
     "--backend: unknown value 'glo'; did you mean 'gloo'?"},
    {{"bench collectives", "--turn", "nan"}, "--turn: expected 0.0001 to 60 seconds, found 'nan'"}};

// One test per program, because loading LibTorch takes time.
class UsageOf : public testing::TestWithParam<const char*> {};

TEST_P(UsageOf, WhatCannotBeMeantIsOneLineAndCode2) {
  if (!is_built(GetParam())) GTEST_SKIP() << "lockstep-" << GetParam() << " was not built";
  int tried = 0;
  for (const Mistake& mistake : mistakes) {
    Words words = mistake.words;
    const std::string command = words.front();
    const std::size_t blank = std::min(command.find(' '), command.size());
    if (command.substr(0, blank) != GetParam()) continue;
    if (blank < command.size()) {
      words.front() = command.substr(0, blank);
      words.insert(words.begin() + 1, command.substr(blank + 1));
    }
    expect_refused(words, "lockstep " + command + ": " + mistake.said);
    ++tried;
  }
  EXPECT_GT(tried, 1);
}

INSTANTIATE_TEST_SUITE_P(, UsageOf,
                         testing::Values("run", "info", "report", "plan", "train", "generate",
                                         "eval", "bench"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Usage, AWrongCommandIsOneLineAndCode2) {
  if (is_built("train"))
    expect_refused({"tarin"}, "lockstep: unknown command 'tarin'; did you mean 'train'?");
  expect_refused({"-n", "2", "./program"},
                 "lockstep: unknown option '-n'; known: --help, --version; to start a program: "
                 "lockstep run -n 2 PROGRAM");
  expect_refused({"--versoin"}, "lockstep: unknown option '--versoin'; did you mean '--version'?");
}

// One test each, because most of them load LibTorch three times.
class HelpOf : public testing::TestWithParam<Words> {};

TEST_P(HelpOf, IsThereAndSoIsTheVersion) {
  const Words& command = GetParam();
  if (!command.empty() && !is_built(command.front()))
    GTEST_SKIP() << "lockstep-" << command.front() << " was not built";
  const auto ask = [&](const char* option) {
    Words words = command;
    words.push_back(option);
    const Finished end = lockstep_command(words);
    EXPECT_EQ(end.status.code, 0) << option << " " << end.error;
    EXPECT_EQ(end.error, "");
    return end.output;
  };
  const std::string help = ask("--help");
  std::string usage = "Usage: lockstep";
  for (const std::string& word : command) usage += " " + word;
  EXPECT_TRUE(help.starts_with(usage)) << help;
  EXPECT_NE(help.find("--version"), std::string::npos) << help;
  const std::string version = lockstep_command({"--version"}).output;
  EXPECT_TRUE(version.starts_with("lockstep 0.")) << version;
  EXPECT_EQ(ask("--version"), version);
}

INSTANTIATE_TEST_SUITE_P(Usage, HelpOf,
                         testing::Values(Words{}, Words{"run"}, Words{"info"}, Words{"report"},
                                         Words{"plan"}, Words{"plan", "pipeline"}, Words{"train"},
                                         Words{"train", "mlp"}, Words{"generate"}, Words{"eval"},
                                         Words{"bench", "collectives"}),
                         [](const auto& info) {
                           std::string name = "lockstep";
                           for (const std::string& word : info.param) name += "_" + word;
                           return name;
                         });

TEST(Usage, HelpWithoutATaskShowsWhatEachTaskTakes) {
  if (!is_built("train")) GTEST_SKIP() << "lockstep-train was not built";
  const std::string help = lockstep_command({"train", "--help"}).output;
  for (const char* words :
       {"--batch N                 rows of one step, over all ranks [gpt 12, "
        "llama 12, moe 12, mnist "
        "64,\n                            cifar 128, mlp 32]",
        "[gpt 2000, llama 2000, moe 2000, mlp 500]", "[mnist 10, cifar 30]",
        "gpt, llama, moe: attention heads [4]", "-n, --ranks N",
        "--accumulate N            gradient accumulation: micro-batches per step on each rank [1]"})
    EXPECT_NE(help.find(words), std::string::npos) << words << "\n" << help;
}

TEST(Usage, AConfigThatIsNoFileOfOptionsIsOneLine) {
  if (!is_built("train")) GTEST_SKIP() << "lockstep-train was not built";
  const test::TemporaryFolder folder;
  const std::string pipe = folder / "pipe", empty = folder / "empty.toml", out = folder / "out",
                    path = folder.path().string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(empty) << "# nothing yet\n";
  const auto refused = [&](const std::string& config, const std::string& said) {
    expect_refused({"train", "mlp", "--out", out, "--config", config}, "lockstep train: " + said);
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  refused(path, "reading " + path + ": expected a file, found a folder");
  refused(pipe, "reading " + pipe + ": expected a file, found a named pipe");
  refused("/dev/null", "reading /dev/null: expected a file, found a device");
  refused(empty, empty + ": expected options such as 'steps = 100', found none");
}

TEST(Usage, AModelThatDoesNotFitIsOneLine) {
  if (!is_built("train")) GTEST_SKIP() << "lockstep-train was not built";
  const test::TemporaryFolder folder;
  const std::string out = folder / "out";
  for (const char* ranks : {"1", "2"}) {
    const Finished end = lockstep_command(
        {"train", "mlp", "--out", out, "--width", "1048576", "--layers", "9", "--ranks", ranks});
    EXPECT_EQ(end.status.code, 1);
    EXPECT_EQ(std::ranges::count(end.error, '\n'), 1) << end.error;
    EXPECT_TRUE(end.error.starts_with(
        "lockstep train: the model does not fit: 7.7T parameters, their gradients and the state of "
        "adamw take at least 112 TiB"))
        << end.error;
    EXPECT_NE(end.error.find(" of memory are free; choose a smaller --width, --layers or --batch"),
              std::string::npos)
        << end.error;
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

}  // namespace
}  // namespace lockstep::apps
