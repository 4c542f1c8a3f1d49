// Training with --shard: losses equal those of DistributedDataParallel, and checkpoints can be read
// at every level and with every number of ranks.
#include <lockstep/train/trainer.h>

#include <lockstep/comm/run_on_all_or_fail.h>

#include "support/temporary_folder.h"
#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

const char* const levels[] = {"optimizer", "gradients", "full"};

// Returns the same run at another level, in its own folder.
RunSetup sharded(RunSetup options, const std::string& level) {
  options.out += "-" + level;
  set_option(options, "shard", level);
  return options;
}

class Sharded : public testing::TestWithParam<int> {};

void expect_same_training(int ranks, RunSetup options) {
  options.clip = 0;  // norms are summed in another order
  RunSetup plain = options;
  plain.sharding.storage = ShardStorage::private_memory;
  run(ranks, plain);
  for (const char* level : levels) {
    RunSetup other = sharded(options, level);
    run(ranks, other);
    expect_same_rows(options, other);
    EXPECT_EQ(distance(options.out, other.out), 0) << level;
  }
}

TEST_P(Sharded, AGptTrainsAsUnderDdpToTheBit) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.dropout = 0.2;
  options.sample = 5;
  expect_same_training(GetParam(), options);
}

TEST_P(Sharded, NodeSharedTrainsAsUnderDdpToTheBit) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.sharding.storage = ShardStorage::node_shared;
  expect_same_training(GetParam(), options);
}

TEST_P(Sharded, GradientsAreSummedInTheStepToTheSameBits) {
  TemporaryFolder folder;
  std::vector<std::pair<std::string, std::string>> kinds{{"full", "sgd"}};
  for (const char* level : levels) kinds.emplace_back(level, "adamw");
  for (const auto& [level, optimizer] : kinds) {
    RunSetup options = tiny_gpt(folder);
    options.out += optimizer;
    set_option(options, "optimizer", optimizer);
    options.accumulate = 2;
    RunSetup before = sharded(options, level);
    before.sharding.storage = ShardStorage::node_shared;
    run(GetParam(), before);
    RunSetup in_step = before;
    in_step.out += "-in-step";
    in_step.sharding.reduce_in_step = true;
    run(GetParam(), in_step);
    expect_same_rows(before, in_step);
    EXPECT_EQ(distance(before.out, in_step.out), 0) << level;
    // In this mode, every rank keeps its own gradients of the whole model.
    auto bytes = [](const RunSetup& one) {
      return metrics_of(one.out).back()["model_bytes"].get<double>();
    };
    if (GetParam() > 1 && level == "full") EXPECT_GT(bytes(in_step), bytes(before) * 1.05);
  }
}

TEST_P(Sharded, DeferredTrainsAndGoesOnAsUnderDdpToTheBit) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.width = 128;  // some tensors are large enough
  options.clip = 0;
  run(GetParam(), options);
  for (const char* level : levels) {
    RunSetup other = sharded(options, level);
    other.deferred_init = true;
    run(GetParam(), other);
    expect_same_rows(options, other);
    EXPECT_EQ(distance(options.out, other.out), 0) << level;
    RunSetup again = cut_at(other, 4);
    run(GetParam(), again);
    EXPECT_EQ(distance(options.out, again.out), 0) << level;
  }
}

TEST_P(Sharded, OffloadTrainsAndGoesOnAsUnderDdpToTheBit) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.clip = 0;
  run(GetParam(), options);
  for (const char* level : levels) {
    RunSetup other = sharded(options, level);
    other.sharding.offload = folder / "disk";
    std::filesystem::create_directories(other.sharding.offload);
    run(GetParam(), other);
    expect_same_rows(options, other);
    RunSetup again = cut_at(other, 4);
    run(GetParam(), again);
    expect_same_rows(options, again);
    EXPECT_EQ(distance(options.out, again.out), 0) << level;
    EXPECT_TRUE(std::filesystem::is_empty(other.sharding.offload));
  }
}

TEST_P(Sharded, DigitsAndAccumulationTrainAsUnderDdpToTheBit) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  options.accumulate = 2;
  expect_same_training(GetParam(), options);
}

TEST_P(Sharded, ARunGoesOnUnderEveryStrategyAsIfItHadNeverStopped) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.clip = 0;
  run(GetParam(), options);
  std::string from = "none";
  for (const char* to : {"full", "gradients", "optimizer", "none"}) {
    RunSetup whole = from == "none" ? options : sharded(options, from);
    if (from != "none") run(GetParam(), whole);
    RunSetup again = cut_at(whole, 4);
    set_option(again, "shard", to);
    run(GetParam(), again);
    expect_same_rows(options, again);
    EXPECT_EQ(distance(options.out, again.out), 0) << from << " to " << to;
    from = to;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sharded, testing::Values(1, 3));

// A checkpoint has whole tensors: 1 and 3 ranks can read what 2 ranks have written.
TEST(ShardedRun, GoesOnWithAnotherNumberOfRanks) {
  TemporaryFolder folder;
  RunSetup options = sharded(tiny_gpt(folder), "full");
  run(2, options);
  for (int ranks : {1, 3}) {
    RunSetup again = cut_at(options, 4);
    again.out += std::to_string(ranks);
    std::filesystem::rename(options.out + "-cut", again.out);
    run(ranks, again);
    EXPECT_NEAR(last_val_loss(again.out), last_val_loss(options.out), 1e-3) << ranks;
  }
}

TEST(ShardedRun, OptimizerStateInACheckpointIsThatOfDdp) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  options.optimizer = OptimizerKind::adamw;
  options.lr = 1e-3;
  RunSetup other = sharded(options, "full");
  for (const RunSetup& one : {options, other}) run(3, one);
  for (const char* file : {"optimizer.safetensors", "model.safetensors"}) {
    auto tensors = [&](const RunSetup& one) {
      return checkpoint::read_safetensors(*checkpoint::latest_checkpoint(one.out) / file).tensors;
    };
    auto expected = tensors(options), found = tensors(other);
    ASSERT_EQ(expected.size(), found.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(tensor.equal(found.at(name))) << name;
  }
}

// With fewer samples than ranks, or one more batch on some ranks, the other ranks call the model
// equally often.
TEST(ShardedRun, EvaluatesWhatDoesNotDivideEvenly) {
  TemporaryFolder folder;
  test::write_tiny_digits(folder.path(), 50, 2);
  RunSetup options("mnist");
  options.data = folder.path();
  options.out = folder / "out";
  options.batch = 12;
  options.steps = 2;
  options.epochs = 0;
  options.threads = 1;
  run(3, options);
  RunSetup other = sharded(options, "full");
  run(3, other);
  EXPECT_EQ(last_val_loss(options.out), last_val_loss(other.out));
}

TEST(ShardedRun, MetricsSayWhatARankHolds) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.width = 64;
  std::map<std::string, double> bytes;
  for (const char* level : {"none", "optimizer", "gradients", "full"}) {
    RunSetup one = sharded(options, level);
    run(2, one);
    auto last = metrics_of(one.out).back();
    bytes[level] = last["model_bytes"].get<double>();
    EXPECT_GT(last["resident_bytes"].get<double>(), bytes[level]) << level;
    EXPECT_GT(last["exposed_seconds"].get<double>(), 0) << level;
  }
  EXPECT_NEAR(bytes["optimizer"] / bytes["none"], 12.0 / 16, 0.05);
  EXPECT_LT(bytes["gradients"], bytes["optimizer"]);
  EXPECT_LT(bytes["full"], bytes["gradients"]);
}

TEST(ShardedRun, AFolderForOffloadThatIsNotThereIsOneLine) {
  TemporaryFolder folder;
  RunSetup options = sharded(tiny_mlp(folder), "full");
  options.sharding.offload = folder / "missing";
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    std::string message = test::message_of([&] { (void)train(options, group); });
    EXPECT_NE(message.find("missing"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  });
  EXPECT_FALSE(std::filesystem::exists(options.out));
}

TEST(ShardedRun, AFolderForOffloadThatIsNotThereIsOneLineBefore) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.shard = ShardKind::full;
  options.sharding.offload = folder / "none";
  EXPECT_EQ(test::message_of([&] { check_run(options, 1); }),
            "--offload " + options.sharding.offload + ": expected a folder that is there");
}

TEST(ShardedRun, WhatNeedsShardsIsRefusedWithoutThem) {
  RunSetup options("mlp");
  options.out = "x";
  options.sharding.storage = ShardStorage::node_shared;
  EXPECT_EQ(test::message_of([&] { check_run(options, 1); }),
            "--node-shared needs --shard optimizer, gradients or full, found --shard none");
  options.sharding.storage = ShardStorage::private_memory;
  options.sharding.offload = "y";
  EXPECT_EQ(test::message_of([&] { check_run(options, 1); }),
            "--offload y needs --shard optimizer, gradients or full, found --shard none");
  options.sharding.offload.clear();
  options.deferred_init = true;
  EXPECT_EQ(test::message_of([&] { check_run(options, 1); }),
            "--deferred-init needs --shard optimizer, gradients or full, found --shard none");
  options.deferred_init = false;
  options.sharding.reduce_in_step = true;
  EXPECT_EQ(test::message_of([&] { check_run(options, 1); }),
            "--reduce-in-step needs --node-shared");
  EXPECT_EQ(test::message_of([&] { Configured(options).all.settings().set("shard", "half"); }),
            "shard: unknown value 'half'; known: auto, none, optimizer, gradients, full");
}

}  // namespace
}  // namespace lockstep::train
