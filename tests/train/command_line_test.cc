#include <lockstep/train/command_line.h>

#include <lockstep/train/config_file.h>

#include "support/temporary_folder.h"
#include "train/messages.h"

#include <gtest/gtest.h>

#include <fstream>

namespace lockstep::train {
namespace {

Options parse(std::vector<std::string> words) { return parse_command_line(words).options; }

std::string message_for(std::vector<std::string> words) {
  std::string message = test::message_of([&] { (void)parse_command_line(words); });
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(CommandLine, WordsOverrideTheFileAndTheFileTheDefaults) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "run.toml") << "layers = 2\nheads = 2\n";
  Options options =
      parse({"gpt", "--config", (folder / "run.toml").string(), "--layers", "3", "--lr=0.25"});
  EXPECT_EQ(options.layers, 3);
  EXPECT_EQ(options.heads, 2);
  EXPECT_EQ(options.lr, 0.25);
  EXPECT_EQ(options.batch, 12);
}

TEST(CommandLine, TheTaskMayComeFromTheFile) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "run.toml") << "task = 'mnist'\nepochs = 2\n";
  Options options = parse({"--config", (folder / "run.toml").string()});
  EXPECT_EQ(options.task, "mnist");
  EXPECT_EQ(options.optimizer, "sgd");
  EXPECT_EQ(options.epochs, 2);
}

TEST(CommandLine, AResumedRunGoesOnWithItsOwnOptions) {
  test::TemporaryFolder folder;
  Options before = default_options("gpt");
  before.layers = 7;
  write_config(folder / "config.toml", before);
  EXPECT_EQ(parse({"gpt", "--resume", "--out", folder.path().string()}).layers, 7);
  EXPECT_EQ(parse({"gpt", "--resume", "--out", folder.path().string(), "--layers", "2"}).layers, 2);
  EXPECT_EQ(parse({"gpt", "--out", folder.path().string()}).layers, 4);
}

TEST(CommandLine, MistakesAreOneLineThatHelps) {
  EXPECT_EQ(message_for({"gpt", "--weigth-decay=2"}),
            "unknown option '--weigth-decay'; did you mean '--weight-decay'?");
  EXPECT_EQ(message_for({"mnist", "--heads", "2"}), "--heads is an option of gpt, not of mnist");
  EXPECT_EQ(message_for({"cifar"}), "unknown task 'cifar'; known: gpt, mnist, mlp");
  EXPECT_EQ(message_for({}), "name a task: gpt mnist mlp");
  EXPECT_EQ(message_for({"gpt", "--batch", "many"}),
            "--batch: expected a whole number, found 'many'");
  EXPECT_EQ(message_for({"gpt", "--steps", "5", "--epochs", "5"}),
            "give --steps or --epochs, not both");
  EXPECT_EQ(message_for({"gpt", "rest"}), "unexpected word 'rest'");
  EXPECT_EQ(message_for({"gpt", "--layers"}), "--layers needs a value");
}

TEST(CommandLine, RanksHaveAShortName) {
  EXPECT_EQ(parse({"mlp", "-n", "2"}).ranks, 2);
  EXPECT_EQ(parse({"-n3", "mlp"}).ranks, 3);
}

TEST(CommandLine, HelpListsTheTasksOptionsWithTheirDefaults) {
  std::vector<std::string> words{"mnist", "--help"};
  std::string help = parse_command_line(words).help;
  EXPECT_NE(help.find("--epochs N"), std::string::npos) << help;
  EXPECT_NE(help.find("[sgd]"), std::string::npos) << help;
  EXPECT_EQ(help.find("--heads"), std::string::npos) << help;
}

}  // namespace
}  // namespace lockstep::train
