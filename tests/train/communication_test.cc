// --hook, --local-sgd, --diloco, --sync-batch-norm and --uneven: training and checkpoints.
#include "train/option_table.h"

#include "support/temporary_folder.h"
#include "support/torch/ranks.h"
#include "train/communication_ways.h"
#include "train/runs.h"
#include "train/tasks/mlp.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

std::string line_of(const RunSetup& setup) {
  std::ifstream file(std::filesystem::path(setup.out) / "result.txt");
  std::string line;
  std::getline(file, line);
  return line;
}

std::int64_t sent_bytes(const RunSetup& setup) {
  const std::string line = line_of(setup);
  const std::string word = " sent_bytes=";
  const std::size_t place = line.find(word);
  return place == std::string::npos ? -1 : std::stoll(line.substr(place + word.size()));
}

class EveryWay : public testing::TestWithParam<Way> {};

// Covers the per-rank state of generators and optimizers; the next test covers batch norms.
TEST_P(EveryWay, GoesOnToTheBit) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.save_every = 5;
  options.dropout = 0.1;
  GetParam().change(options);
  run(2, options);
  RunSetup again = cut_at(options, 5);
  run(2, again);
  EXPECT_EQ(distance(options.out, again.out), 0);
  const auto all = metrics_of(options.out), again_all = metrics_of(again.out);
  ASSERT_EQ(all.size(), again_all.size());
  EXPECT_EQ(all.back()["loss"], again_all.back()["loss"]);
  EXPECT_EQ(all.back()["val_loss"], again_all.back()["val_loss"]);
}

TEST_P(EveryWay, KeepsRunningStatisticsOfItsOwn) {
  TemporaryFolder folder;
  RunSetup options = tiny_cifar(folder);
  options.save_every = 5;
  GetParam().change(options);
  run(3, options);
  RunSetup again = cut_at(options, 5);
  run(3, again);
  EXPECT_EQ(distance(options.out, again.out), 0);
}

TEST_P(EveryWay, GoesOnWithOtherRanksAndWithoutIt) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  GetParam().change(options);
  run(3, options);
  RunSetup on_two = cut_at(options, 4);
  run(2, on_two);
  EXPECT_EQ(metrics_of(on_two.out).size(), 8u);
  EXPECT_LT(distance(options.out, on_two.out), 0.1);
  std::filesystem::remove_all(on_two.out);
  RunSetup plain = cut_at(options, 4);
  const Options unset;
  plain.hook = unset.hook;
  plain.local_sgd = unset.local_sgd;
  plain.post_local_sgd = unset.post_local_sgd;
  plain.diloco = unset.diloco;
  run(2, plain);
  EXPECT_EQ(metrics_of(plain.out).size(), 8u);
  EXPECT_LT(distance(options.out, plain.out), 0.1);
}

// Evaluates, samples and saves at other steps, synchronously and asynchronously.
TEST_P(EveryWay, IsNotDisturbedByBeingLookedAt) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  GetParam().change(options);
  run(2, options);
  RunSetup watched = options;
  watched.out += "-watched";
  watched.eval_every = 1;
  watched.save_every = 3;
  watched.sample_every = 2;
  watched.sample = 5;
  watched.async_save = true;
  run(2, watched);
  EXPECT_EQ(distance(options.out, watched.out), 0);
}

INSTANTIATE_TEST_SUITE_P(All, EveryWay, testing::ValuesIn(all_ways()),
                         [](const auto& info) { return info.param.name; });

TEST(Hooks, TrainAlmostTheSameModelWithFewerBytes) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.steps = 40;
  run(2, options);
  const double whole = static_cast<double>(sent_bytes(options));
  ASSERT_GT(whole, 0);
  for (const auto& [way, share] : {std::pair(hook("bf16"), 0.6), std::pair(hook("fp16"), 0.6),
                                   std::pair(hook("powersgd:2"), 0.7)}) {
    RunSetup other = options;
    other.out += way.name;
    way.change(other);
    run(2, other);
    EXPECT_LT(static_cast<double>(sent_bytes(other)), share * whole) << way.name;
    EXPECT_LT(distance(options.out, other.out), 0.05) << way.name;
    EXPECT_GT(distance(options.out, other.out), 0) << way.name;
  }
}

// With plain SGD, averaging the updated models equals updating with the averaged gradient.
TEST(LocalUpdates, AverageEveryStepIsDistributedDataParallel) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.optimizer = OptimizerKind::sgd;
  options.lr = 0.05;
  run(3, options);
  RunSetup local = options;
  local.out += "-local";
  local.local_sgd.period = 1;
  run(3, local);
  EXPECT_LT(distance(options.out, local.out), 1e-6);
  RunSetup diloco = options;
  diloco.out += "-diloco";
  diloco.diloco.inner_steps = 1;
  diloco.diloco.outer_lr = 1;
  diloco.diloco.outer_momentum = 0;
  run(3, diloco);
  EXPECT_LT(distance(options.out, diloco.out), 1e-6);
}

// The outer parameters include all steps, even if the run does not end with an outer update.
TEST(LocalUpdates, DiLoCoEndsWithAllThatWasLearned) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.steps = 10;
  options.diloco.inner_steps = 1000;
  options.diloco.outer_lr = 1;
  options.diloco.outer_momentum = 0;
  run(2, options);
  RunSetup local = options;
  local.out += "-local";
  local.diloco.inner_steps = 0;
  local.diloco.outer_lr = Options().diloco.outer_lr;
  local.diloco.outer_momentum = Options().diloco.outer_momentum;
  local.local_sgd.period = 1000;
  run(2, local);
  EXPECT_LT(distance(options.out, local.out), 1e-6);
}

TEST(LocalUpdates, SendSeldom) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.steps = 40;
  options.save_every = 40;
  options.log_every = 7;
  run(2, options);
  RunSetup seldom = options;
  seldom.out += "-seldom";
  seldom.diloco.inner_steps = 20;
  run(2, seldom);
  EXPECT_LT(sent_bytes(seldom), sent_bytes(options) / 19);
  EXPECT_GT(sent_bytes(seldom), 0);
}

// A signal may come at any step; the rows of metrics are at steps where ranks meet.
TEST(LocalUpdates, StopAndGoOnBetweenAverages) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  options.local_sgd.period = 4;
  options.save_every = 3;
  run(3, options);
  for (std::int64_t step : {3, 6, 9}) {
    RunSetup again = cut_at(options, step);
    run(3, again);
    EXPECT_EQ(distance(options.out, again.out), 0) << step;
    std::filesystem::remove_all(again.out);
  }
}

// A task in which one rank's data comes late once.
class LateData : public MlpTask {
 public:
  explicit LateData(bool is_late) : is_late_(is_late) {}
  [[nodiscard]] Batch batch(std::int64_t step) override {
    if (is_late_ && step == 5) std::this_thread::sleep_for(std::chrono::seconds(4));
    return MlpTask::batch(step);
  }

 private:
  bool is_late_;
};

TEST(LocalUpdates, HaveTheirDeadlineFromTheFirstStepOn) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.local_sgd = {.period = 2, .timeout = std::chrono::seconds(1)};
  options.post_local_sgd.start_step = 3;
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    LateData task(group.rank() == 1);
    options.settle(task);
    if (group.rank() == 0)
      EXPECT_THROW((void)train(task, options, group), Timeout);
    else
      EXPECT_THROW((void)train(task, options, group), Error);
  });
}

class Uneven : public testing::TestWithParam<int> {};

// 4096 rows: the last step of an epoch has one row, so only one rank has any.
TEST_P(Uneven, RanksTrainWhatOneProcessTrains) {
  TemporaryFolder folder;
  const int ranks = GetParam();
  RunSetup options = tiny_mlp(folder);
  options.batch = 1365;
  options.steps = 0;
  options.epochs = 3;
  options.save_every = 4;
  run(1, options);
  RunSetup uneven = options;
  uneven.out += "-uneven";
  uneven.uneven = true;
  run(ranks, uneven);
  EXPECT_LT(distance(options.out, uneven.out), 1e-5);
  ASSERT_EQ(metrics_of(options.out).size(), metrics_of(uneven.out).size());
  RunSetup again = cut_at(uneven, 4);
  run(ranks, again);
  EXPECT_EQ(distance(uneven.out, again.out), 0);
}

// The first step of the resumed run is one in which only one rank has a row.
TEST_P(Uneven, GoesOnWithAScaleAtAStepWithoutRows) {
  TemporaryFolder folder;
  const int ranks = GetParam();
  RunSetup options = tiny_mlp(folder);
  options.batch = 1365;
  options.steps = 0;
  options.epochs = 2;
  options.save_every = 3;
  options.uneven = true;
  options.sharding.compute_dtype = at::kHalf;
  run(ranks, options);
  RunSetup again = cut_at(options, 3);
  run(ranks, again);
  EXPECT_EQ(distance(options.out, again.out), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Uneven, testing::Values(3, 5, 7));

// 40 images, 13 per rank: in the last step of an epoch, two of three ranks have no images.
TEST(Uneven, NormalisesByTheRowsOfAllRanks) {
  TemporaryFolder folder;
  RunSetup options = tiny_cifar(folder);
  options.batch = 39;
  options.save_every = 0;
  options.lr = 0.01;
  run(1, options);
  RunSetup ranks = options;
  ranks.out += "-3";
  ranks.uneven = ranks.sync_batch_norm = true;
  run(3, ranks);
  EXPECT_LT(distance(options.out, ranks.out), 2e-3);
  RunSetup apart = ranks;
  apart.out += "-apart";
  apart.sync_batch_norm = false;
  run(3, apart);
  EXPECT_GT(distance(options.out, apart.out), 2e-2);
}

TEST(Uneven, EachSampleIsSeenOnceAnEpoch) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.batch = 315 * 3;
  options.uneven = true;
  test::run_group(test::BackendKind::shm, 3, [&](Group group) {
    std::unique_ptr<Task> task = options.make();
    task->load(options, group);
    at::Tensor rows = torch::zeros({1}, torch::kLong);
    EXPECT_EQ(task->steps_per_epoch(), 5);
    for (std::int64_t step = 0; step < task->steps_per_epoch(); ++step) {
      const Batch batch = task->batch(step);
      if (batch.data.defined()) rows += batch.data.size(0);
    }
    group.all_reduce(rows, Op::sum).wait();
    EXPECT_EQ(rows.item<std::int64_t>(), 4096);
  });
}

}  // namespace
}  // namespace lockstep::train
