// Saving during a run, and write errors.
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/train/trainer.h>

#include "support/flush_hook.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"
#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

// Simulates a full disk whenever a file is flushed whose path contains `part`.
test::FlushHook full_for(const std::string& part) {
  return test::FlushHook([part](const std::string& path) {
    return path.find(part) != std::string::npos ? ENOSPC : 0;
  });
}

std::vector<std::string> checkpoints_in(const fs::path& out) {
  std::vector<std::string> names;
  for (const fs::path& folder : checkpoint::list_checkpoints(out))
    names.push_back(folder.filename());
  return names;
}

class AsyncSaving : public testing::TestWithParam<int> {};

TEST_P(AsyncSaving, ChangesNothingOfTheRun) {
  for (const char* shard : {"none", "full"}) {
    TemporaryFolder folder;
    RunSetup plain = tiny_gpt(folder);
    plain.dropout = 0.2;
    set_option(plain, "shard", shard);
    RunSetup async = plain;
    async.out += "-async";
    async.async_save = true;
    run(GetParam(), plain);
    run(GetParam(), async);
    EXPECT_EQ(distance(plain.out, async.out), 0);
    expect_same_rows(plain, async);
    EXPECT_EQ(checkpoints_in(async.out), checkpoints_in(plain.out));
    for (const std::string& name : checkpoints_in(async.out)) {
      checkpoint::verify(fs::path(async.out) / name);
      EXPECT_EQ(distance(fs::path(async.out) / name, fs::path(plain.out) / name), 0);
    }
    async.resume = true;
    async.resume_from = "step-4";
    run(GetParam(), async);
    EXPECT_EQ(distance(plain.out, async.out), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AsyncSaving, testing::Values(1, 3));

TEST(SaveErrors, StopTheRunUnlessItIsToldToGoOn) {
  for (bool async : {false, true}) {
    TemporaryFolder folder;
    RunSetup options = tiny_mlp(folder);
    options.async_save = async;
    options.save_every = 3;
    options.eval_every = 8;
    const auto hook = full_for("step-00000003");
    const std::string message = test::message_of([&] { (void)train(options, Group()); });
    EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
    EXPECT_EQ(checkpoints_in(options.out), std::vector<std::string>{});

    options.out += "-on";
    options.on_save_error = OnSaveError::go_on;
    EXPECT_EQ(train(options, Group()).step, 8);
    EXPECT_EQ(checkpoints_in(options.out),
              (std::vector<std::string>{"step-00000006", "step-00000008"}));
  }
}

// Without its last checkpoint, the run would have trained for nothing.
TEST(SaveErrors, OfTheLastCheckpointAreAlwaysErrors) {
  for (bool async : {false, true}) {
    TemporaryFolder folder;
    RunSetup options = tiny_mlp(folder);
    options.async_save = async;
    options.on_save_error = OnSaveError::go_on;
    const auto hook = full_for("step-00000008");
    const std::string message = test::message_of([&] { (void)train(options, Group()); });
    EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
    EXPECT_EQ(checkpoints_in(options.out), std::vector<std::string>{"step-00000004"});
  }
}

// Servers that fail to save continue with their workers and report the error.
TEST(SaveErrors, OfServersStopTheRunUnlessItIsToldToGoOn) {
  for (const char* file : {"step-00000003", "optimizer.safetensors"}) {
    TemporaryFolder folder;
    RunSetup options = tiny_mlp(folder);
    options.strategy = StrategyKind::ps;
    options.servers = 2;
    options.save_every = 3;
    const auto hook = full_for(file);
    test::run_group(test::BackendKind::shm, 4, [&](Group group) {
      const std::string message = test::message_of([&] { (void)train(options, group); });
      EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
    });
    EXPECT_EQ(checkpoints_in(options.out), std::vector<std::string>{});
  }
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.strategy = StrategyKind::ps;
  options.servers = 2;
  options.save_every = 3;
  options.out += "-on";
  options.on_save_error = OnSaveError::go_on;
  const auto hook = full_for("step-00000003");
  run(4, options);
  EXPECT_EQ(checkpoints_in(options.out),
            (std::vector<std::string>{"step-00000006", "step-00000008"}));
}

TEST(SaveErrors, OfTheBestModelAreForgottenWithIt) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.eval_every = 4;
  options.on_save_error = OnSaveError::go_on;
  {
    const auto hook = full_for(".best.safetensors");
    EXPECT_EQ(train(options, Group()).last_line.find("best="), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(fs::path(options.out) / "best.safetensors"));
}

}  // namespace
}  // namespace lockstep::train
