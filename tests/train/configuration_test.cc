#include "train/configuration.h"

#include "support/temporary_folder.h"
#include "train/messages.h"
#include "train/run_setup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

std::unique_ptr<Configured> with_file(const std::string& text, const std::string& task = "gpt") {
  test::TemporaryFolder folder;
  std::ofstream(folder / "run.toml") << text;
  auto made = std::make_unique<Configured>(RunSetup(task));
  made->all.settings().add_elsewhere("attention", "another");
  apply_config(made->all, read_config(folder / "run.toml"));
  return made;
}

std::string message_for(const std::string& text) {
  std::string message = test::message_of([&] { (void)with_file(text); });
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  std::size_t place = message.find("run.toml");
  return place == std::string::npos ? message : message.substr(place);
}

TEST(ConfigFile, SetsWhatItNames) {
  auto made = with_file(
      "# a run\nlayers = 2\nlr = 0.5\nweight-decay = 1\ndata = 'a b'\nschedule = \"step\"\nepochs "
      "= 3\n");
  const Options& options = made->all.options;
  EXPECT_EQ(setting_of(*made->task, "layers"), "2");
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.weight_decay, 1.0);
  EXPECT_EQ(setting_of(*made->task, "data"), "a b");
  EXPECT_EQ(options.schedule, ScheduleKind::step);
  EXPECT_EQ(options.epochs, 3);
  EXPECT_EQ(options.steps, 0);
  EXPECT_EQ(setting_of(*made->task, "heads"), "4");
}

TEST(ConfigFile, NothingOfItIsObeyedByATerminal) {
  for (const char* text : {"\"a\\u001b[31m\\n\" = 1\n", "schedule = \"\\u009b31m\\n\"\n",
                           "\"a\\u001b\" = [1]\n", "layers = \"\\n\"\n"}) {
    std::string message = message_for(text);
    auto is_control = [](unsigned char letter) { return letter < 32 || letter == 127; };
    EXPECT_EQ(std::ranges::count_if(message, is_control), 0) << message;
    EXPECT_EQ(message.find("\xc2\x9b"), std::string::npos) << message;
    EXPECT_NE(message.find("line 1"), std::string::npos) << message;
  }
}

TEST(ConfigFile, AnUnknownKeyIsNamedWithItsLineAndTheNearest) {
  std::string message = message_for("layers = 2\nwieght-decay = 0.1\n");
  EXPECT_TRUE(message.starts_with("run.toml line 2: ")) << message;
  EXPECT_NE(message.find("'wieght-decay'"), std::string::npos) << message;
  EXPECT_NE(message.find("'weight-decay'"), std::string::npos) << message;
}

TEST(ConfigFile, WrongValuesAreNamedWithTheirLine) {
  EXPECT_EQ(message_for("\nbatch = 0\n"),
            "run.toml line 2: batch: expected an integer from 1 to 16777216, found '0'");
  EXPECT_EQ(message_for("lr = '0.1'\n"),
            "run.toml line 1: lr: expected a value without quotes, found 0.1");
  EXPECT_EQ(message_for("data = 5\n"),
            "run.toml line 1: data: expected a string in quotes, found 5");
  EXPECT_EQ(message_for("steps = 1.5\n"),
            "run.toml line 1: steps: expected an integer, found '1.5'");
  EXPECT_EQ(message_for("[model]\nlayers = 2\n"),
            "run.toml line 1: model: expected a string, a number, true or false");
  EXPECT_EQ(message_for("steps = 1\nepochs = 1\n"),
            "run.toml line 1: give steps or epochs, not both");
  EXPECT_EQ(message_for("task = 'mnist'\n"),
            "run.toml line 1: the file is for task 'mnist', the command says 'gpt'");
}

TEST(ConfigFile, WhatIsNoTomlIsAnError) {
  EXPECT_TRUE(message_for("layers = \n").starts_with("run.toml line 1: "));
  EXPECT_TRUE(message_for("a = 1\na = 2\n").starts_with("run.toml line 2: "));
  EXPECT_NE(
      test::message_of([] { (void)read_config("/nowhere/run.toml"); }).find("/nowhere/run.toml"),
      std::string::npos);
}

TEST(ConfigFile, AnOptionOfAnotherTaskIsNamedWithItsTasks) {
  std::string message = test::message_of([] { (void)with_file("attention = 2\n", "mlp"); });
  EXPECT_NE(message.find("run.toml line 1: attention is an option of another, not of mlp"),
            std::string::npos)
      << message;
}

TEST(ConfigFile, WhatIsNoFileOrHoldsNothingIsAnError) {
  test::TemporaryFolder folder;
  std::string path = folder.path().string();
  EXPECT_EQ(test::message_of([&] { (void)read_config(path); }),
            "reading " + path + ": expected a file, found a folder");
  EXPECT_EQ(message_for("# all of it is a comment\n"),
            "run.toml: expected options such as 'steps = 100', found none");
}

TEST(ConfigFile, WhatIsWrittenReadsBackAsTheSameOptions) {
  for (const auto& [task, out] : {std::pair("gpt", "a folder \"with\" quotes\\"),
                                  std::pair("mnist", "a line end\nbefore quotes '''"),
                                  std::pair("mlp", "\r\n\t\x7f'\"\"\" \xc3\xa4\n")}) {
    test::TemporaryFolder folder;
    Configured written{RunSetup(task)}, read{RunSetup(task)};
    written.all.options.out = out;
    written.all.options.lr = 1.0 / 3;
    written.all.options.seed = 77;
    written.all.options.mesh = parse_axes("dp=2,fsdp=-1,tp=2");
    written.all.options.hook = parse_hook("bf16+powersgd:3");
    written.all.options.hook.power_sgd.start_step = 5;
    written.all.options.schedule = ScheduleKind::one_cycle;
    written.all.options.consistency = ps::Consistency::stale_synchronous;
    written.all.options.context_method = ContextMethod::ulysses;
    written.all.options.pipeline = "zb-h1";
    written.all.options.diloco = {.inner_steps = 3, .pseudo_gradients = PseudoGradients::int8};
    written.all.options.sharding = {.storage = ShardStorage::node_shared,
                                    .compute_dtype = at::kHalf,
                                    .reduce_dtype = at::kBFloat16,
                                    .prefetch = 7};
    write_config(folder / "config.toml", written.all);
    std::vector<ConfigEntry> entries = read_config(folder / "config.toml");
    EXPECT_EQ(entries.front().name, "task");
    apply_config(read.all, entries);
    EXPECT_EQ(read.all.options.out, out);
    EXPECT_EQ(read.all.kept(), written.all.kept());
    EXPECT_EQ(read.all.options.mesh, written.all.options.mesh);
    EXPECT_EQ(read.all.options.sharding.compute_dtype, at::kHalf);
    EXPECT_EQ(read.all.options.sharding.storage, ShardStorage::node_shared);
    EXPECT_EQ(read.all.options.diloco.inner_steps, 3);
    EXPECT_EQ(read.all.options.hook.power_sgd.rank, 3);
  }
}

// A value that follows from the mesh is not stored as if the user had given it.
TEST(ConfigFile, AShardThatFollowsFromTheMeshReadsBackAsAuto) {
  for (const auto& [shard, mesh, kept] :
       {std::tuple(ShardKind::automatic, "", "none"),
        std::tuple(ShardKind::automatic, "dp=4", "none"),
        std::tuple(ShardKind::automatic, "fsdp=4", "auto"), std::tuple(ShardKind::none, "", "none"),
        std::tuple(ShardKind::none, "dp=4,fsdp=1", "none"),
        std::tuple(ShardKind::full, "fsdp=4", "full"), std::tuple(ShardKind::full, "", "full")}) {
    test::TemporaryFolder folder;
    Configured written{RunSetup("mlp")}, read{RunSetup("mlp")};
    written.all.options.shard = shard;
    if (*mesh != 0) written.all.options.mesh = parse_axes(mesh);
    write_config(folder / "config.toml", written.all);
    const std::vector<ConfigEntry> entries = read_config(folder / "config.toml");
    const auto entry = std::ranges::find(entries, "shard", &ConfigEntry::name);
    ASSERT_NE(entry, entries.end());
    EXPECT_EQ(entry->text, kept) << mesh;
    apply_config(read.all, entries);
    EXPECT_EQ(level_of(read.all.options), level_of(written.all.options)) << mesh;
    EXPECT_EQ(read.all.kept(), written.all.kept()) << mesh;
  }
}

// The trace is written in the middle of the run.
TEST(RunChecks, ATraceIsAFileInAFolderThatIsThere) {
  const test::TemporaryFolder folder;
  for (const std::string& place :
       {folder.path().string(), folder.path().string() + "/", (folder / "none/t.json").string()}) {
    RunSetup setup("mlp");
    setup.out = "out";
    setup.trace = place;
    const std::string text = test::message_of([&] { check_run(setup, 1); });
    EXPECT_NE(text.find("--trace " + place + ": expected a file in a folder that is there"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace lockstep::train
