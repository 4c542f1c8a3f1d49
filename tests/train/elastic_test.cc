// Elastic runs: results are bitwise equal for any number of ranks and any losses on the way.
#include <lockstep/base/error.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/train/trainer.h>

#include "elastic/small_agent.h"
#include "support/messages.h"
#include "train/elastic_runs.h"
#include "train/strategies.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

using namespace lockstep;
using namespace lockstep::train;
using namespace std::chrono_literals;
using test::contains;
using test::message_of;
using test::SmallAgent;

namespace {

namespace fs = std::filesystem;

using Setup = std::function<RunSetup(const test::TemporaryFolder&)>;

class ElasticRuns : public testing::TestWithParam<std::pair<std::string, Setup>> {};

TEST_P(ElasticRuns, HaveTheSameBytesAtAnyNumberOfRanks) {
  const test::TemporaryFolder folder;
  RunSetup options = GetParam().second(folder);
  options.dropout = GetParam().first == "gpt" ? std::optional(0.1) : std::nullopt;
  options.clip = 0.5;
  options.elastic_micro_batches = 6;
  const RunSetup alone = elastic_setup(options, "1");
  run(1, alone);
  for (const int ranks : {2, 5}) {
    const RunSetup several = elastic_setup(options, std::to_string(ranks));
    run(ranks, several);
    expect_same_run(alone, several);
  }
}

INSTANTIATE_TEST_SUITE_P(Tasks, ElasticRuns,
                         testing::Values(std::pair<std::string, Setup>("gpt", tiny_gpt),
                                         std::pair<std::string, Setup>("mnist", tiny_mnist),
                                         std::pair<std::string, Setup>("cifar", tiny_cifar)),
                         [](const auto& info) { return info.param.first; });

// Compares one rank with the whole model, and several ranks with parts of it.
TEST(ElasticShards, HaveTheBytesOfOneProcess) {
  const test::TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.dropout = 0.1;
  options.clip = 0.5;
  options.elastic_micro_batches = 6;
  const RunSetup alone = elastic_setup(options, "1");
  run(1, alone);
  for (const auto& [ranks, shard, is_shared] :
       {std::tuple(2, "optimizer", false), std::tuple(3, "gradients", false),
        std::tuple(4, "full", false), std::tuple(5, "full", true)}) {
    set_option(options, "shard", shard);
    options.sharding.storage = is_shared ? ShardStorage::node_shared : ShardStorage::private_memory;
    const RunSetup divided = elastic_setup(options, std::to_string(ranks) + shard);
    run(ranks, divided);
    expect_same_run(alone, divided);
  }
}

TEST(ElasticRun, ThatIsKilledShrunkAndGrownEndsWithTheBytesOfAnUndisturbedOne) {
  const test::TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.dropout = 0.1;
  options.steps = 60;
  options.eval_every = 10;
  options.save_every = 25;
  options.elastic_micro_batches = 4;
  const RunSetup undisturbed = elastic_setup(options, "undisturbed");
  run(4, undisturbed);
  const RunSetup disturbed = elastic_setup(options, "disturbed");
  SmallAgent agent([&] { return train_worker(disturbed); });
  kill_and_shrink(agent, disturbed, 15, 30);
  agent.begin_round(5, "nodes join");
  wait_for_rows(disturbed, 45);
  agent.kill(2);
  agent.begin_round(3);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0, 0}));
  expect_same_run(undisturbed, disturbed);
  EXPECT_EQ(checkpoint::list_checkpoints(disturbed.out).size(),
            checkpoint::list_checkpoints(undisturbed.out).size());
  for (const auto& entry : fs::directory_iterator(disturbed.out))
    EXPECT_FALSE(entry.path().filename().string().starts_with("abandoned")) << entry.path();
}

TEST(ElasticShards, ThatAreKilledShrunkAndGrownEndWithTheBytesOfAnUndisturbedRun) {
  const test::TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.dropout = 0.1;
  options.steps = 40;
  options.eval_every = 10;
  options.save_every = 15;
  options.elastic_micro_batches = 4;
  const RunSetup undisturbed = elastic_setup(options, "undisturbed");
  run(3, undisturbed);
  options.shard = ShardKind::full;
  const RunSetup disturbed = elastic_setup(options, "disturbed");
  SmallAgent agent([&] { return train_worker(disturbed); });
  kill_and_shrink(agent, disturbed, 12, 20);
  agent.begin_round(3, "nodes join");
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0, 0}));
  expect_same_run(undisturbed, disturbed);
}

TEST(ElasticRun, OfWhichAllWorkersAreKilledBeforeItsFirstStepBeginsAnew) {
  const test::TemporaryFolder folder;
  RunSetup options = elastic_setup(tiny_gpt(folder), "killed");
  SmallAgent agent([&] { return train_worker(options); });
  agent.begin_round(2);
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (!agent.store().try_get("lockstep-round/marks/folder") &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
  agent.kill(0);
  agent.kill(1);
  agent.begin_round(2);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0}));
  const RunSetup undisturbed = elastic_setup(tiny_gpt(folder), "undisturbed");
  run(2, undisturbed);
  expect_same_run(undisturbed, options);
}

TEST(ElasticRun, DoesNotTakeUpAFolderThatHoldsAnotherRun) {
  const test::TemporaryFolder folder;
  const RunSetup options = elastic_setup(tiny_gpt(folder), "twice");
  run(1, options);
  const std::string model = bytes_of_file(fs::path(options.out) / "model.safetensors");
  SmallAgent agent([&] {
    return contains(message_of<CollectiveFailure>([&] { (void)train_worker(options); }),
                    "holds a run already")
               ? 0
               : 1;
  });
  agent.begin_round(1);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0}));
  EXPECT_TRUE(contains(agent.store().try_get("lockstep-round/0/final").value_or(""),
                       "holds a run already"));
  EXPECT_EQ(bytes_of_file(fs::path(options.out) / "model.safetensors"), model);
}

TEST(ElasticOptions, WhatDoesNotFitIsOneLine) {
  RunSetup fits("mlp");
  fits.out = "x";
  fits.elastic = true;
  fits.batch = 12;
  fits.elastic_micro_batches = 4;
  const auto refusal = [&](const std::function<void(Options&)>& change) {
    RunSetup options = fits;
    change(options);
    return message_of<BadInput>([&] { check_run(options, 1); });
  };
  EXPECT_EQ(refusal([](Options&) {}), "no error");
  EXPECT_TRUE(contains(refusal([](Options& o) { o.elastic_micro_batches = 13; }),
                       "--batch 12 has fewer rows than --elastic-micro-batches 13"));
  EXPECT_TRUE(
      contains(refusal([](Options& o) { o.elastic_micro_batches = 5; }),
               "--batch 12 must be divisible by --elastic-micro-batches 5; try --batch 10 or 15"));
  EXPECT_TRUE(contains(refusal([](Options& o) { o.strategy = StrategyKind::ps; }),
                       "--elastic needs --strategy ddp, found --strategy ps"));
  fits.shard = ShardKind::full;
  EXPECT_EQ(refusal([](Options&) {}), "no error");
  EXPECT_EQ(refusal([](Options& o) {
              o.sharding.storage = ShardStorage::node_shared;
              o.sharding.reduce_in_step = true;
            }),
            "give --elastic or --reduce-in-step, not both");
  EXPECT_EQ(refusal([](Options& o) { o.sharding.compute_dtype = at::kBFloat16; }),
            "give --elastic or --precision bf16, not both");
  fits.shard = ShardKind::automatic;
  EXPECT_EQ(refusal([](Options& o) { o.uneven = true; }), "give --elastic or --uneven, not both");
  EXPECT_TRUE(
      contains(refusal([](Options& o) { o.mesh = parse_axes("pp=2"); }), "found --mesh pp=2"));
  EXPECT_EQ(refusal([](Options& o) { o.accumulate = 2; }),
            "give --elastic or --accumulate 2, not both");
  EXPECT_TRUE(contains(refusal([](Options& o) { o.elastic = false; }),
                       "--elastic-micro-batches 4 needs --elastic"));
  Options unset;
  for (const auto& [batch, slots] :
       {std::pair(32, 8), std::pair(12, 6), std::pair(7, 7), std::pair(11, 1), std::pair(3, 3)}) {
    unset.batch = batch;
    EXPECT_EQ(slots_of(unset), slots) << batch;
  }
}

}  // namespace
