#include "train/resume_command.h"

#include <lockstep/train/command_line.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::train {
namespace {

TEST(ResumeCommand, WordsAreQuotedWhereAShellNeedsIt) {
  EXPECT_EQ(shell_word("out/run-1.b=c"), "out/run-1.b=c");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("my data"), "'my data'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word("a;b"), "'a;b'");
  EXPECT_EQ(shell_word("größe"), "'größe'");
}

std::string command_of(std::vector<std::string> words) {
  return parse_command_line(words).options.command;
}

TEST(ResumeCommand, IsTheCommandAsGivenWithoutResume) {
  EXPECT_EQ(command_of({"mlp", "--out", "my out", "--ranks", "2"}), "mlp --out 'my out' --ranks 2");
  EXPECT_EQ(command_of({"mlp", "--resume", "--out=o"}), "mlp --out=o");
  EXPECT_EQ(command_of({"mlp", "--resume-from", "step-5", "--out", "o"}), "mlp --out o");
  EXPECT_EQ(command_of({"mlp", "--resume-from=5", "--out", "o"}), "mlp --out o");
  Options options;
  options.command = "lockstep train mlp --out o";
  EXPECT_EQ(resume_command(options, "--resume"), "lockstep train mlp --out o --resume");
}

TEST(ResumeCommand, ARunWithoutACommandLineIsNamedByItsFolder) {
  Options options = default_options("mnist");
  options.out = "a b";
  EXPECT_EQ(resume_command(options, "--resume"), "lockstep train mnist --out 'a b' --resume");
}

TEST(ResumeCommand, ACheckpointThatIsNamedIsOneToGoOnFrom) {
  std::vector<std::string> words{"mlp", "--resume-from", "step-5", "--out", "o"};
  Options options = parse_command_line(words).options;
  EXPECT_TRUE(options.resume);
  EXPECT_EQ(options.resume_from, "step-5");
}

}  // namespace
}  // namespace lockstep::train
