#include "train/configuration.h"

#include "train/run_setup.h"

#include <gtest/gtest.h>

#include <memory>
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
  std::unique_ptr<Task> task = make_task("mlp");
  Task* const tasks[] = {task.get()};
  return parse_command_line("my_program", tasks, words).run->options.command;
}

TEST(ResumeCommand, IsTheCommandAsGivenWithoutResume) {
  EXPECT_EQ(command_of({"--out", "my out", "--ranks", "2"}), "--out 'my out' --ranks 2");
  EXPECT_EQ(command_of({"--resume", "--out=o"}), "--out=o");
  EXPECT_EQ(command_of({"--resume", "auto", "--out=o"}), "--out=o");
  EXPECT_EQ(command_of({"--resume=auto", "--out=o"}), "--out=o");
  EXPECT_EQ(command_of({"--overwrite", "--out=o"}), "--out=o");
  EXPECT_EQ(command_of({"--resume-from", "step-5", "--out", "o"}), "--out o");
  EXPECT_EQ(command_of({"--resume-from=5", "--out", "o"}), "--out o");
  RunSetup setup("mlp");
  setup.command = "lockstep train mlp --out o";
  EXPECT_EQ(resume_command(Configured(setup).all, "--resume"),
            "lockstep train mlp --out o --resume");
}

TEST(ResumeCommand, ARunWithoutACommandLineIsNamedByItsFolder) {
  RunSetup setup("mnist");
  setup.out = "a b";
  EXPECT_EQ(resume_command(Configured(setup).all, "--resume"),
            "lockstep train mnist --out 'a b' --resume");
}

TEST(ResumeCommand, ACheckpointThatIsNamedIsOneToGoOnFrom) {
  std::unique_ptr<Task> task = make_task("mlp");
  Task* const tasks[] = {task.get()};
  const std::vector<std::string> words{"--resume-from", "step-5", "--out", "o"};
  Options options = parse_command_line("my_program", tasks, words).run->options;
  EXPECT_TRUE(options.resume);
  EXPECT_EQ(options.resume_from, "step-5");
}

}  // namespace
}  // namespace lockstep::train
