// lockstep-generate and lockstep-eval as started by users, on a run of lockstep-train.
#include "apps/shell.h"
#include "support/python.h"
#include "support/temporary_folder.h"
#include "sys/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace lockstep {
namespace {

using test::count_lines;
using test::program;
using test::shell;
using test::ShellResult;

// One run for all tests. Its text also has three-byte characters, and the model learns it by heart.
class SavedRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!std::filesystem::exists(program("lockstep-train"))) return;
    folder_ = std::make_unique<test::TemporaryFolder>();
    std::ofstream text(*folder_ / "text.txt");
    for (int i = 0; i < 300; ++i) text << "abacus ∞ banana\n";
    text.close();
    trained_ = in_folder(
        "lockstep-train gpt --data text.txt --out runs/mine --layers 2 --heads 2 "
        "--width 32 --block 24 --steps 150 --lr 0.01 --threads 1");
  }
  static void TearDownTestSuite() { folder_.reset(); }

  void SetUp() override {
    if (!folder_) GTEST_SKIP() << "lockstep-train was not built";
    ASSERT_EQ(trained_.exit_code, 0) << trained_.output;
  }

  static ShellResult in_folder(const std::string& words) {
    return shell("cd " + folder_->path().string() + " && " + LOCKSTEP_PROGRAM_DIR "/" + words);
  }
  static ShellResult generate(const std::string& words) {
    return in_folder("lockstep-generate " + words + " 2>&1");
  }
  static ShellResult eval(const std::string& words) {
    return in_folder("lockstep-eval " + words + " 2>&1");
  }

  static void expect_same_text_of_two_ranks(const std::string& words) {
    const ShellResult one = generate(words);
    ASSERT_EQ(one.exit_code, 0) << one.output;
    const ShellResult two =
        in_folder("lockstep run -n 2 " LOCKSTEP_PROGRAM_DIR "/lockstep generate --mesh tp=2 " +
                  words + " 2>&1");
    EXPECT_EQ(two.exit_code, 0) << two.output;
    EXPECT_NE(two.output.find(one.output.substr(0, one.output.find('\n'))), std::string::npos)
        << two.output;
  }

  static double loss_in(const std::string& line) {
    return std::stod(line.substr(line.find("val_loss=") + 9));
  }

  static inline std::unique_ptr<test::TemporaryFolder> folder_;
  static inline ShellResult trained_;
};

using GenerateProgram = SavedRun;
using EvalProgram = SavedRun;

TEST_F(GenerateProgram, WritesThePromptAndWhatFollows) {
  ShellResult known = generate("runs/mine --prompt 'abac' --tokens 12 --greedy");
  EXPECT_EQ(known.exit_code, 0);
  EXPECT_EQ(known.output, "abacus ∞ banana\n\n");
  EXPECT_EQ(generate("runs/mine/best.safetensors --tokens 4 --temperature 0").output, "abac\n");
}

TEST_F(GenerateProgram, TheSameSeedGivesTheSameText) {
  const std::string words = "runs/mine --prompt a --tokens 50 --temperature 3 --top-k 5 --seed ";
  ShellResult one = generate(words + "1");
  EXPECT_EQ(one.exit_code, 0) << one.output;
  EXPECT_EQ(generate(words + "1").output, one.output);
  EXPECT_NE(generate(words + "2").output, one.output);
}

// Two ranks compute every layer together, and rank 0 writes.
TEST_F(GenerateProgram, RanksOfTensorParallelismWriteTheSameText) {
  const std::string words = "runs/mine --prompt abac --tokens 40 --greedy";
  expect_same_text_of_two_ranks(words);
  const ShellResult alone = generate("--mesh tp=2 " + words);
  EXPECT_NE(alone.output.find("--mesh tp=2: expected as many ranks as tp, 2, found 1"),
            std::string::npos)
      << alone.output;
}

TEST_F(GenerateProgram, RanksThatDoNotComputeTogetherAreRefused) {
  const ShellResult two = in_folder("lockstep run -n 2 " LOCKSTEP_PROGRAM_DIR
                                    "/lockstep generate runs/mine --tokens 3 2>&1");
  EXPECT_EQ(two.exit_code, 1) << two.output;
  EXPECT_NE(two.output.find("--mesh is missing: each of 2 ranks would print the text: give --mesh "
                            "tp=2, or start one process"),
            std::string::npos)
      << two.output;
}

// In a model with mixtures, each rank has all experts and half of everything else.
TEST_F(GenerateProgram, RanksOfTensorParallelismComputeMixturesToo) {
  const ShellResult trained = in_folder(
      "lockstep-train moe --data text.txt --out runs/moe --layers 2 --heads 2 --width 16 "
      "--block 12 --experts 4 --steps 40 --lr 0.01 --threads 1");
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const std::string words = "runs/moe --prompt abac --tokens 24 --greedy";
  expect_same_text_of_two_ranks(words);
}

// Only rank 0 of a launched group has standard input.
TEST_F(GenerateProgram, RanksOfTensorParallelismShareAPromptFromStandardInput) {
  const ShellResult one = generate("runs/mine --prompt abac --tokens 12 --greedy");
  const ShellResult two = shell(
      "cd " + folder_->path().string() + " && printf abac | " + program("lockstep") + " run -n 2 " +
      program("lockstep") + " generate --mesh tp=2 runs/mine --prompt - --tokens 12 --greedy 2>&1");
  EXPECT_EQ(two.exit_code, 0) << two.output;
  EXPECT_NE(two.output.find(one.output.substr(0, one.output.find('\n'))), std::string::npos)
      << two.output;
}

TEST_F(GenerateProgram, ReadsThePromptFromStandardInput) {
  ShellResult piped = shell("printf 'abacus ∞' | " + program("lockstep-generate") + " " +
                            (*folder_ / "runs/mine").string() + " --prompt - --tokens 7 --greedy");
  EXPECT_EQ(piped.output, "abacus ∞ banana\n");
}

// A generation that would take hours prints its beginning at once.
TEST_F(GenerateProgram, PrintsWhileItMakes) {
  ShellResult head = shell(program("lockstep-generate") + " " + (*folder_ / "runs/mine").string() +
                           " --prompt a --tokens 1000000000 | head -c 20");
  EXPECT_EQ(head.output.size(), 20u);
}

TEST_F(GenerateProgram, AResultThatNobodyGetsIsAFailure) {
  for (const char* words : {"lockstep-generate runs/mine --tokens 3", "lockstep-eval runs/mine"}) {
    ShellResult full = in_folder(std::string(words) + " 2>&1 >/dev/full");
    EXPECT_EQ(full.exit_code, 1) << words;
    EXPECT_NE(full.output.find("cannot write to standard output"), std::string::npos);
  }
}

void expect_line(const ShellResult& result, int code, const std::string& named) {
  EXPECT_EQ(result.exit_code, code) << result.output;
  EXPECT_EQ(count_lines(result.output), 1) << result.output;
  EXPECT_NE(result.output.find(named), std::string::npos) << result.output;
}

TEST_F(GenerateProgram, AMistakeInTheOptionsIsOneLine) {
  expect_line(generate(""), 2, "RUN is missing");
  expect_line(generate("runs/mine text"), 2, "--prompt TEXT");
  expect_line(generate("runs/mine --tokens 1.5"), 2, "--tokens: expected an integer");
  for (const char* wrong : {"0.001", "nan"})
    expect_line(generate(std::string("runs/mine --temperature=") + wrong), 2,
                "--temperature: expected 0 or");
  expect_line(generate("runs/mine --greedy --top-k 3"), 2, "not both");
  expect_line(generate("runs/mine --promt a"), 2, "did you mean '--prompt'?");
}

TEST_F(GenerateProgram, WhatDoesNotFitTheModelIsOneLine) {
  expect_line(generate("runs/mine --prompt 'abäc'"), 2, "'ä' (U+00E4)");
  expect_line(generate("runs/mine --prompt ''"), 2, "the prompt: expected at least one character");
  expect_line(generate("runs/none"), 1, "runs/none");
  expect_line(generate("text.txt"), 1, "text.txt");
}

TEST_F(EvalProgram, GivesTheLossOfTheRunOnAnyNumberOfRanks) {
  ShellResult alone = eval("runs/mine");
  EXPECT_EQ(alone.exit_code, 0) << alone.output;
  EXPECT_TRUE(alone.output.starts_with("val_loss=")) << alone.output;
  EXPECT_NE(alone.output.find(" step=150 model=runs/mine/model.safetensors\n"), std::string::npos)
      << alone.output;
  EXPECT_NEAR(loss_in(alone.output), loss_in(test::last_line(trained_.output)), 0.00051);
  EXPECT_EQ(eval("runs/mine --ranks 3").output, alone.output);
  ShellResult launched =
      shell("cd " + folder_->path().string() + " && " + program("lockstep") +
            " run -n 2 --prefix none " + program("lockstep") + " eval runs/mine");
  EXPECT_EQ(launched.output, alone.output);
  ShellResult other = eval("runs/mine --data text.txt --batches 1");
  EXPECT_TRUE(other.output.ends_with(" eval_batches=1\n")) << other.output;
}

TEST_F(EvalProgram, AMistakeIsOneLine) {
  for (auto [words, code, named] :
       {std::tuple("", 2, "RUN is missing"), std::tuple("a b", 2, "unexpected word 'b'"),
        std::tuple("runs/mine --batches x", 2, "--batches"),
        std::tuple("runs/mine --ranks 0", 2, "--ranks"), std::tuple("runs/none", 1, "runs/none"),
        std::tuple("runs/mine --data none.txt --ranks 2", 1, "none.txt")}) {
    expect_line(eval(words), code, named);
  }
}

// Returns the first ```python block in docs/reference/run_folder.md.
std::string python_of_the_document() {
  std::string text = sys::read_file(LOCKSTEP_SOURCE_DIR "/docs/reference/run_folder.md");
  const std::string begin = "```python\n", end = "```\n";
  std::size_t at = text.find(begin) + begin.size();
  return text.substr(at, text.find(end, at) - at);
}

TEST_F(GenerateProgram, ThePythonOfTheDocumentWritesTheSameText) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  std::ofstream(*folder_ / "document.py") << python_of_the_document();
  ShellResult python = shell("cd " + folder_->path().string() + " && OMP_NUM_THREADS=1 '" +
                             test::python()->string() + "' document.py");
  EXPECT_EQ(python.exit_code, 0) << python.output;
  EXPECT_EQ(python.output, generate("runs/mine --prompt a --tokens 40 --greedy").output);
}

}  // namespace
}  // namespace lockstep
