#include "train/configuration.h"

#include "support/temporary_folder.h"
#include "train/messages.h"
#include "train/option_table.h"
#include "train/run_setup.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

// A parsed command line of `lockstep train`, with the tasks that it refers to.
struct Parsed {
  explicit Parsed(const std::vector<std::string>& words) : tasks(known_tasks()) {
    std::vector<Task*> known;
    for (const auto& task : tasks) known.push_back(task.get());
    line = parse_command_line("lockstep train", known, words);
  }
  [[nodiscard]] std::string of_task(const std::string& name) const {
    return setting_of(line.run->task(), name);
  }

  std::vector<std::unique_ptr<Task>> tasks;
  CommandLine line;
};

Options parse(const std::vector<std::string>& words) { return Parsed(words).line.run->options; }

std::string message_for(std::vector<std::string> words) {
  std::string message = test::message_of([&] { (void)Parsed(words); });
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(CommandLine, WordsOverrideTheFileAndTheFileTheDefaults) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "run.toml") << "layers = 2\nheads = 2\n";
  const Parsed found(
      {"gpt", "--config", (folder / "run.toml").string(), "--layers", "3", "--lr=0.25"});
  EXPECT_EQ(found.of_task("layers"), "3");
  EXPECT_EQ(found.of_task("heads"), "2");
  EXPECT_EQ(found.line.run->options.lr, 0.25);
  EXPECT_EQ(found.line.run->options.batch, 12);
  EXPECT_TRUE(found.line.run->options.places.contains("heads"));
  // Options of the command line override those of the file.
  EXPECT_FALSE(found.line.run->options.places.contains("layers"));
}

TEST(CommandLine, TheTaskMayComeFromTheFile) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "run.toml") << "task = 'mnist'\nepochs = 2\n";
  const Parsed found({"--config", (folder / "run.toml").string()});
  const Options& options = found.line.run->options;
  EXPECT_EQ(found.line.run->task_name(), "mnist");
  EXPECT_EQ(options.optimizer, OptimizerKind::sgd);
  EXPECT_EQ(options.epochs, 2);
}

TEST(CommandLine, AResumedRunGoesOnWithItsOwnOptions) {
  test::TemporaryFolder folder;
  RunSetup before("gpt");
  before.layers = 7;
  write_config(folder / "config.toml", Configured(before).all);
  const std::string out = folder.path().string();
  EXPECT_EQ(Parsed({"gpt", "--resume", "--out", out}).of_task("layers"), "7");
  EXPECT_EQ(Parsed({"gpt", "--resume", "--out", out, "--layers", "2"}).of_task("layers"), "2");
  EXPECT_EQ(Parsed({"gpt", "--out", out}).of_task("layers"), "4");
}

TEST(CommandLine, AResumedRunMayHaveAMeshWithoutTheAxisThatMeantFull) {
  test::TemporaryFolder folder;
  const std::string out = folder.path().string();
  const auto resumed = [&](ShardKind shard, const char* before, const char* mesh) {
    RunSetup run("mlp");
    run.shard = shard;
    run.mesh = parse_axes(before);
    write_config(folder / "config.toml", Configured(run).all);
    const Parsed found({"mlp", "--resume", "--out", out, "--mesh", mesh, "--batch", "24"});
    return test::message_of([&] { check_run(*found.line.run, 4); });
  };
  const std::string fits = "nothing was thrown";
  EXPECT_EQ(resumed(ShardKind::automatic, "fsdp=4", "dp=4"), fits);
  EXPECT_EQ(resumed(ShardKind::automatic, "dp=4", "fsdp=4"), fits);
  EXPECT_EQ(resumed(ShardKind::full, "fsdp=4", "dp=4"),
            "--mesh dp=4: expected an axis fsdp, over which --shard full divides the model, or "
            "--shard none");
  const std::string refused = resumed(ShardKind::none, "dp=4,fsdp=1", "dp=2,fsdp=2");
  EXPECT_NE(refused.find("found --shard none (shard is set in "), std::string::npos) << refused;
  EXPECT_EQ(Parsed({"mlp", "--shard", "none", "--mesh", "fsdp=4"}).line.run->options.shard,
            ShardKind::none);
}

TEST(CommandLine, MistakesAreOneLineThatHelps) {
  EXPECT_EQ(message_for({"gpt", "--weigth-decay=2"}),
            "unknown option '--weigth-decay'; did you mean '--weight-decay'?");
  EXPECT_EQ(message_for({"mnist", "--heads", "2"}),
            "--heads is an option of gpt and llama and moe, not of mnist");
  EXPECT_EQ(message_for({"imagenet"}),
            "unknown task 'imagenet'; known: gpt, llama, moe, mnist, cifar, mlp");
  EXPECT_EQ(message_for({}), "name a task: gpt llama moe mnist cifar mlp");
  EXPECT_EQ(message_for({"gpt", "--batch", "many"}), "--batch: expected an integer, found 'many'");
  EXPECT_EQ(message_for({"gpt", "--steps", "5", "--epochs", "5"}),
            "give --steps or --epochs, not both");
  EXPECT_EQ(message_for({"gpt", "rest"}), "unexpected word 'rest'");
  EXPECT_EQ(message_for({"gpt", "--layers"}), "--layers needs a value");
}

// Otherwise, the run would fail at its first checkpoint, which stores the options as JSON.
TEST(CommandLine, NamesThatFilesOfTheRunCannotKeepAreRefused) {
  EXPECT_EQ(
      message_for({"mlp", "--out", "r\xff"}).find("--out: expected UTF-8, because config.toml"),
      0U);
  EXPECT_EQ(message_for({"gpt", "--out", "o", "--data", "d\xe4"}).find("--data: expected UTF-8"),
            0U);
}

// The system would take the text before the NUL as the path.
TEST(CommandLine, ATextWithNulIsRefused) {
  test::TemporaryFolder folder;
  const std::string file = folder / "run.toml";
  std::ofstream(file) << "out = \"a\\u0000b\"\n";
  EXPECT_EQ(
      message_for({"mlp", "--config", file}),
      "--out: expected a text without NUL, which would end a path there, found 'a\\x00b' (out "
      "is set in " +
          file + " line 1)");
}

TEST(CommandLine, ResumeTakesAWord) {
  const auto options_of = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"mlp", "--out", "o"});
    return parse(words);
  };
  EXPECT_TRUE(options_of({"--resume"}).resume);
  EXPECT_FALSE(options_of({"--resume"}).resume_auto);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--resume", "auto"}, {"--resume=auto"}}) {
    EXPECT_FALSE(options_of(words).resume);
    EXPECT_TRUE(options_of(words).resume_auto);
  }
  EXPECT_TRUE(options_of({"--overwrite"}).overwrite);
}

// The command that a run prints for its resume has the same --config.
TEST(CommandLine, WordsThatSayHowARunStartsReplaceThoseOfTheFile) {
  test::TemporaryFolder folder;
  const std::string file = folder / "run.toml";
  const auto with_file = [&](const std::string& text, std::vector<std::string> words) {
    std::ofstream(file) << text;
    words.insert(words.begin(), {"mlp", "--config", file, "--out", "o"});
    return words;
  };
  EXPECT_EQ(parse(with_file("resume-from = 'step-5'\n", {})).resume_from, "step-5");
  Options options = parse(with_file("resume-from = 'step-5'\n", {"--resume"}));
  EXPECT_TRUE(options.resume);
  EXPECT_EQ(options.resume_from, "");
  options = parse(with_file("overwrite = true\nresume = true\n", {"--resume-from", "step-7"}));
  EXPECT_EQ(options.resume_from, "step-7");
  EXPECT_FALSE(options.overwrite);
  EXPECT_FALSE(parse(with_file("overwrite = true\n", {"--resume", "auto"})).overwrite);
  options = parse(with_file("resume = true\nresume-auto = true\n", {"--overwrite"}));
  EXPECT_TRUE(options.overwrite);
  EXPECT_FALSE(options.resume);
  EXPECT_FALSE(options.resume_auto);
  const Parsed both(with_file("resume = true\noverwrite = true\n", {}));
  EXPECT_EQ(test::message_of([&] { check_run(*both.line.run, 1); }),
            "give --resume or --overwrite, not both (overwrite is set in " + file + " line 2)");
}

TEST(CommandLine, RanksHaveAShortName) {
  EXPECT_EQ(parse({"mlp", "-n", "2"}).ranks, 2);
  EXPECT_EQ(parse({"-n3", "mlp"}).ranks, 3);
}

TEST(CommandLine, HelpListsTheTasksOptionsWithTheirDefaults) {
  std::vector<std::string> words{"mnist", "--help"};
  std::string help = Parsed(words).line.help;
  EXPECT_NE(help.find("--epochs N"), std::string::npos) << help;
  EXPECT_NE(help.find("[sgd]"), std::string::npos) << help;
  EXPECT_EQ(help.find("--heads"), std::string::npos) << help;
}

// A program with a single task needs no word for it.
TEST(CommandLine, TheOnlyTaskIsNotNamed) {
  std::unique_ptr<Task> task = make_task("mlp");
  Task* const only[] = {task.get()};
  auto parsed = [&](std::vector<std::string> words) {
    return parse_command_line("my_program", only, words);
  };
  CommandLine line = parsed({"--width", "9", "--precision", "bf16"});
  EXPECT_EQ(&line.run->task(), task.get());
  EXPECT_EQ(setting_of(*task, "width"), "9");
  EXPECT_EQ(line.run->options.sharding.compute_dtype, at::kBFloat16);
  EXPECT_TRUE(parsed({"--help"}).help.starts_with("Usage: my_program [OPTIONS]"))
      << parsed({"--help"}).help;
  EXPECT_EQ(test::message_of([&] { (void)parsed({"mlp"}); }), "unexpected word 'mlp'");
  EXPECT_EQ(test::message_of([&] {
              (void)parsed({"--heads", "2"});
            }),
            "unknown option '--heads'; did you mean '--threads'?");
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
