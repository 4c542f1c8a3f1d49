// --strategy threads and ps: the same training on devices and on servers.
#include "train/strategies.h"

#include "support/temporary_folder.h"
#include "support/torch/ranks.h"
#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

RunSetup on_servers(RunSetup options, const std::string& consistency, int servers = 1) {
  options.strategy = StrategyKind::ps;
  options.servers = servers;
  set_option(options, "consistency", consistency);
  options.out += "-ps";
  return options;
}

RunSetup without_servers(RunSetup options) {
  options.strategy = StrategyKind::ddp;
  options.servers = 0;
  options.consistency = std::nullopt;
  return options;
}

// Returns one task of each kind: without randomness, with dropout, and with clipping by the global
// norm.
std::vector<RunSetup> all_tasks(const TemporaryFolder& folder) {
  std::vector<RunSetup> tasks{tiny_mlp(folder), tiny_mnist(folder), tiny_gpt(folder)};
  for (RunSetup& task : tasks) task.out += "-" + task.task;
  tasks[2].dropout = 0.1;
  EXPECT_GT(tasks[2].clip, 0);
  return tasks;
}

class OnServers : public testing::TestWithParam<int> {};

// Workers of synchronous servers make bitwise the same steps as equally many ranks without servers.
TEST_P(OnServers, SynchronousTrainingIsThatOfAllRanks) {
  TemporaryFolder folder;
  const int workers = GetParam();
  for (const RunSetup& alone : all_tasks(folder)) {
    run(workers, alone);
    RunSetup served = on_servers(alone, "synchronous");
    run(workers + 1, served);
    EXPECT_EQ(distance(alone.out, served.out), 0) << alone.task;
    expect_same_rows(alone, served);
  }
}

// Ranks of a host share the update of large parameters, while a server updates all of them. Results
// are equal with accumulated and clipped gradients, and after resuming from a checkpoint of either.
TEST(Strategies, AnUpdateThatRanksDivideIsThatOfAServer) {
  TemporaryFolder folder;
  RunSetup alone = tiny_gpt(folder);
  alone.width = 128;
  alone.batch = 8;
  alone.accumulate = 2;
  alone.clip = 0.1;
  run(2, alone);
  const RunSetup served = on_servers(alone, "synchronous");
  run(3, served);
  EXPECT_EQ(distance(alone.out, served.out), 0);
  expect_same_rows(alone, served);
  for (const bool saves_beside : {false, true}) {
    RunSetup again = cut_at(alone, 4);
    again.async_save = saves_beside;
    run(2, again);
    EXPECT_EQ(distance(alone.out, again.out), 0);
    std::filesystem::remove_all(again.out);
  }
  const RunSetup without = without_servers(cut_at(served, 4));
  run(2, without);
  EXPECT_EQ(distance(alone.out, without.out), 0);
}

TEST_P(OnServers, ARunGoesOnToTheBit) {
  TemporaryFolder folder;
  RunSetup options = on_servers(tiny_mnist(folder), "synchronous", 2);
  run(GetParam() + 2, options);
  RunSetup again = cut_at(options, 4);
  run(GetParam() + 2, again);
  EXPECT_EQ(distance(options.out, again.out), 0);
  expect_same_rows(options, again);
}

INSTANTIATE_TEST_SUITE_P(Workers, OnServers, testing::Values(1, 3));

// Checkpoints do not depend on servers: a run can be resumed without servers, and vice versa.
TEST(Strategies, ARunGoesOnByAnotherStrategy) {
  TemporaryFolder folder;
  RunSetup alone = tiny_mlp(folder);
  run(2, alone);
  RunSetup served = on_servers(alone, "synchronous", 2);
  run(4, served);
  const RunSetup without = without_servers(cut_at(served, 4));
  run(2, without);
  EXPECT_EQ(distance(alone.out, without.out), 0);
  const RunSetup cut = cut_at(alone, 4);
  RunSetup with = on_servers(cut, "synchronous");
  with.out = cut.out;
  run(3, with);
  EXPECT_EQ(distance(alone.out, with.out), 0);
}

// Each gradient makes an update when it arrives, so results are not reproducible; but the training
// works, is saved, and can be resumed.
TEST(Strategies, WorkersThatDoNotWaitLearn) {
  TemporaryFolder folder;
  for (const char* consistency : {"asynchronous", "stale-synchronous"}) {
    RunSetup options = on_servers(tiny_mlp(folder), consistency, 2);
    options.out += consistency;
    options.staleness = std::string(consistency) == "asynchronous" ? 0 : 2;
    options.steps = 60;
    options.log_every = 10;
    options.save_every = 30;
    options.clip = 5;
    run(5, options);
    auto rows = metrics_of(options.out);
    ASSERT_EQ(rows.size(), 6u);
    EXPECT_LT(last_val_loss(options.out), 0.7 * rows.front()["loss"].get<double>());
    RunSetup longer = options;
    longer.resume = true;
    longer.steps = 80;
    run(4, longer);
    EXPECT_EQ(checkpoint::list_checkpoints(options.out).back().filename(), "step-00000080");
    EXPECT_LT(last_val_loss(options.out), 0.7 * rows.front()["loss"].get<double>());
  }
}

TEST(Strategies, WhatWorkersFindWrongIsSaidOnceOnAllRanks) {
  TemporaryFolder folder;
  RunSetup options = on_servers(tiny_mlp(folder), "synchronous");
  auto expect_said = [&](const std::string& words) {
    test::run_group(test::BackendKind::shm, 3, [&](Group group) {
      std::string text = test::message_of([&] { (void)train(options, group); });
      EXPECT_NE(text.find(words), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    });
  };
  options.resume = true;
  expect_said("--resume: expected a checkpoint in ");
  options.resume = false;
  options.lr = 1e6;
  options.optimizer = OptimizerKind::sgd;
  options.steps = 40;
  expect_said("expected a finite loss");
}

// Devices have other rows than ranks, so sums are rounded differently. SGD shows the scale of
// gradients, which AdamW hides.
TEST(Strategies, DevicesOfOneProcessTrainTheSameModel) {
  TemporaryFolder folder;
  RunSetup plain = tiny_mlp(folder);
  plain.optimizer = OptimizerKind::sgd;
  plain.lr = 0.05;
  for (RunSetup options : {plain, tiny_gpt(folder)}) {
    const double bound = options.optimizer == OptimizerKind::sgd ? 1e-5 : 2e-3;
    options.out += options.task;
    run(1, options);
    for (int devices : {1, 2, 3}) {
      RunSetup threads = options;
      threads.strategy = StrategyKind::threads;
      threads.devices = devices;
      threads.out += "-" + std::to_string(devices);
      run(1, threads);
      EXPECT_LT(distance(options.out, threads.out), devices == 1 ? 1e-12 : bound) << options.task;
      EXPECT_NEAR(last_val_loss(threads.out), last_val_loss(options.out), 1e-3);
    }
  }
}

TEST(Strategies, DevicesGoOnToTheBit) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  options.strategy = StrategyKind::threads;
  options.devices = 2;
  options.accumulate = 3;
  run(1, options);
  RunSetup again = cut_at(options, 4);
  run(1, again);
  EXPECT_EQ(distance(options.out, again.out), 0);
  expect_same_rows(options, again);
}

TEST(Strategies, CombinationsWithoutMeaningAreOneLine) {
  auto refused = [](const std::function<void(RunSetup&)>& change, int ranks) {
    RunSetup setup("mlp");
    setup.out = "out";
    setup.batch = 12;
    change(setup);
    std::string text = test::message_of([&] { check_run(setup, ranks); });
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  };
  auto dp = [](RunSetup& setup) {
    setup.strategy = StrategyKind::threads;
    setup.devices = 2;
  };
  auto ps = [](RunSetup& setup) { setup.strategy = StrategyKind::ps; };
  EXPECT_EQ(refused([&](RunSetup& setup) { dp(setup); }, 1), "nothing was thrown");
  EXPECT_EQ(refused([&](RunSetup& setup) { ps(setup); }, 4), "nothing was thrown");
  EXPECT_EQ(
      refused([&](RunSetup& setup) { dp(setup); }, 2),
      "--strategy threads: all devices are threads of one process, found 2 ranks; processes are "
      "--strategy ddp");
  EXPECT_EQ(refused([&](RunSetup& setup) { setup.strategy = StrategyKind::threads; }, 1),
            "--strategy threads needs --devices, the threads that compute");
  EXPECT_EQ(refused([&](RunSetup& setup) { setup.devices = 2; }, 1),
            "--devices 2 needs --strategy threads, found --strategy ddp");
  EXPECT_EQ(refused([&](RunSetup& setup) { setup.workers = 3; }, 3),
            "--workers 3 needs --strategy ps, found --strategy ddp");
  EXPECT_EQ(refused([&](RunSetup& setup) { setup.consistency = ps::Consistency::asynchronous; }, 3),
            "--consistency asynchronous needs --strategy ps, found --strategy ddp");
  EXPECT_EQ(refused(
                [&](RunSetup& setup) {
                  ps(setup);
                  setup.servers = 3;
                },
                3),
            "--strategy ps: 3 of 3 ranks would be servers, and no worker is left: give --workers");
  EXPECT_EQ(refused(
                [&](RunSetup& setup) {
                  ps(setup);
                  setup.workers = 3;
                },
                3),
            "--servers 1 and --workers 3 are 4 ranks, found 3");
  EXPECT_EQ(refused(
                [&](RunSetup& setup) {
                  ps(setup);
                  setup.staleness = 4;
                  setup.consistency = ps::Consistency::synchronous;
                },
                3),
            "--staleness 4 needs --consistency auto or stale-synchronous, found --consistency "
            "synchronous");
  EXPECT_EQ(refused(
                [&](RunSetup& setup) {
                  ps(setup);
                  setup.servers = 2;
                  setup.clip = 1;
                },
                4),
            "--clip 1 needs --servers 1 if one update uses the gradients of all workers: with 2 "
            "servers, none has the norm of the whole gradient");
  EXPECT_EQ(refused(
                [&](RunSetup& setup) {
                  dp(setup);
                  setup.shard = ShardKind::full;
                },
                1),
            "--strategy threads needs --shard none, found --shard full");
  EXPECT_EQ(refused(
                [&](RunSetup& setup) {
                  ps(setup);
                  setup.batch = 16;
                },
                4),
            "--batch 16 must be divisible by 3 (3 workers x 1 micro-batch); try --batch 15 or 18");
}

TEST(Strategies, ServersAndWorkersSayHowManyProcessesThereAre) {
  RunSetup setup("mlp");
  EXPECT_EQ(usual_ranks(setup), 1);
  setup.strategy = StrategyKind::ps;
  setup.servers = 2;
  EXPECT_EQ(usual_ranks(setup), 1);
  setup.workers = 3;
  EXPECT_EQ(usual_ranks(setup), 5);
}

}  // namespace
}  // namespace lockstep::train
