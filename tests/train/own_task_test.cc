// A task outside of the trainer, which overrides only the mandatory functions.
#include <lockstep/train/epoch_batches.h>
#include <lockstep/train/program.h>
#include <lockstep/train/task.h>

#include "train/configuration.h"
#include "train/messages.h"
#include "train/model.h"
#include "train/runs.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

// Sums of three numbers.
struct Sums {
  std::size_t count = 0;
  double scale = 1;
  [[nodiscard]] std::size_t size() const { return count; }
  [[nodiscard]] torch::data::Example<> get(std::size_t index) const {
    const auto number = static_cast<std::int64_t>(index);
    at::Tensor x = torch::tensor({number % 3, number % 5, number % 7}).to(at::kFloat) * scale;
    return {x, x.sum(0, /*keepdim=*/true)};
  }
};

class SumTask : public Task {
 public:
  [[nodiscard]] std::string name() const override { return "sum"; }
  void declare(Settings& settings) override {
    settings.add({.name = "scale", .help = "of the data", .least = 0.1}, scale_);
    settings.add({.name = "bias", .help = "of the model", .scope = Scope::shape}, bias_);
    settings.add({.name = "experts", .needs = {"mesh dp=N"}}, experts_);
    settings.add({.name = "top-k", .needs = {"experts"}}, top_k_);
  }
  void load(const Options& options, const Group& group) override {
    batches_.emplace(Sums{samples_, scale_}, options, group);
    validation_ = {21, scale_};
  }
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override {
    model_ = torch::nn::Linear(torch::nn::LinearOptions(3, 1).bias(bias_));
    return model_.ptr();
  }
  [[nodiscard]] std::int64_t steps_per_epoch() const override {
    return batches_->steps_per_epoch();
  }
  [[nodiscard]] Batch batch(std::int64_t step) override { return batches_->batch(step); }
  [[nodiscard]] at::Tensor loss(const Batch& batch) override {
    return at::mse_loss(model_->forward(batch.data), batch.target);
  }
  [[nodiscard]] std::int64_t validation_samples() const override { return 21; }
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override {
    return data::read_batch(validation_, {samples.data(), samples.size()});
  }

  std::size_t samples_ = 120;
  double scale_ = 1;
  bool bias_ = true;
  std::int64_t experts_ = 0, top_k_ = 1;

 private:
  Sums validation_;
  std::optional<EpochBatches<Sums>> batches_;
  torch::nn::Linear model_{nullptr};
};

Options of_sums(const TemporaryFolder& folder) {
  Options options;
  options.out = folder / "out";
  options.steps = 0;
  options.epochs = 8;
  options.batch = 12;
  options.lr = 0.05;
  options.log_every = 1;
  options.keep_checkpoints = 0;
  options.threads = 1;
  return options;
}

void run_sums(int ranks, const Options& options) {
  test::run_group(test::BackendKind::shm, ranks, [&](Group group) {
    SumTask task;
    (void)train(task, options, group);
  });
}

class OwnTask : public testing::TestWithParam<int> {};

TEST_P(OwnTask, IsTrainedEvaluatedSavedAndGoesOnToTheBit) {
  TemporaryFolder folder;
  for (const char* shard : {"none", "full"}) {
    Options options = of_sums(folder);
    set_option(options, "shard", shard);
    options.out += shard;
    run_sums(GetParam(), options);
    auto rows = metrics_of(options.out);
    ASSERT_EQ(rows.size(), 80u);
    EXPECT_LT(rows.back()["val_loss"].get<double>(), rows[9]["val_loss"].get<double>() / 2);
    for (const char* name : {"best.safetensors", "model.safetensors", "config.toml"})
      EXPECT_TRUE(fs::exists(fs::path(options.out) / name)) << name;
    Options again = options;
    again.out += "-again";
    fs::copy(options.out, again.out, fs::copy_options::recursive);
    again.resume_from = "step-40";
    run_sums(GetParam(), again);
    EXPECT_EQ(distance(options.out, again.out), 0);
    auto metadata =
        checkpoint::read_safetensors(fs::path(options.out) / "model.safetensors").metadata;
    EXPECT_EQ(metadata.at("task"), "sum");
    EXPECT_EQ(metadata.at("bias"), "true");
    EXPECT_FALSE(metadata.contains("scale"));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OwnTask, testing::Values(1, 2, 3, 4));

// A model of four pieces. The last batch of an epoch has two rows, fewer than there are
// micro-batches.
class StagedSums : public SumTask {
 public:
  StagedSums() { samples_ = 7 * 16 + 2; }
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override {
    using torch::nn::Linear;
    layers_ = torch::nn::Sequential(Linear(3, 4), Linear(4, 4), Linear(4, 4), Linear(4, 1));
    return layers_.ptr();
  }
  [[nodiscard]] ParallelPlan parallel_plan() const override {
    if (layers_.is_empty()) return {};
    ParallelPlan plan = lockstep::parallel_plan(layers_);
    plan.loss = [](const Tensors& outputs, const Tensors& targets) {
      return at::mse_loss(outputs[0], targets[0]);
    };
    return plan;
  }
  [[nodiscard]] at::Tensor loss(const Batch& batch) override {
    return at::mse_loss(layers_->forward(batch.data), batch.target);
  }

 private:
  torch::nn::Sequential layers_{nullptr};
};

class StagesOfOwnTask : public testing::TestWithParam<std::tuple<int, const char*, const char*>> {};

TEST_P(StagesOfOwnTask, TrainTheShortLastBatchOfAnEpoch) {
  const auto& [ranks, mesh, schedule] = GetParam();
  TemporaryFolder folder;
  Options options = of_sums(folder);
  options.epochs = 2;
  options.batch = 16;
  options.accumulate = 4;
  options.optimizer = OptimizerKind::sgd;
  options.lr = 1e-3;
  Options staged = options;
  staged.out += "-staged";
  set_option(staged, "mesh", mesh);
  staged.pipeline = schedule;
  for (const auto& [count, each] : {std::pair(1, &options), std::pair(ranks, &staged)})
    test::run_group(test::BackendKind::shm, count, [&, own = each](Group group) {
      StagedSums task;
      (void)train(task, *own, group);
    });
  EXPECT_EQ(metrics_of(staged.out).size(), 16u);
  EXPECT_LT(distance(options.out, staged.out), 1e-5);
  EXPECT_NEAR(last_val_loss(options.out), last_val_loss(staged.out), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Meshes, StagesOfOwnTask,
                         testing::Values(std::tuple(2, "pp=2", "1f1b"),
                                         std::tuple(2, "pp=2", "zb-h1"),
                                         std::tuple(4, "pp=2,dp=2", "1f1b"),
                                         std::tuple(4, "pp=2,fsdp=2", "gpipe")));

std::string refused(const Options& options, SumTask& task) {
  return test::message_of([&] { (void)train(task, options, Group()); });
}

// A program may set more epochs than --epochs takes.
TEST(OwnTaskChecks, EpochsWithMoreStepsThanARunCanHaveAreRefused) {
  TemporaryFolder folder;
  Options options = of_sums(folder);
  options.epochs = std::numeric_limits<std::int64_t>::max();
  SumTask task;
  EXPECT_EQ(refused(options, task),
            "--epochs 9223372036854775807: expected epochs with at most 1000000000000000 steps "
            "together, found 10 steps in each");
}

TEST(OwnTaskChecks, OtherDataAndOtherModelsAreRefusedOnAResume) {
  TemporaryFolder folder;
  Options options = of_sums(folder);
  SumTask task, other_data, other_model;
  (void)train(task, options, Group());
  options.resume = true;
  options.epochs = 9;
  other_data.scale_ = 2;
  EXPECT_NE(refused(options, other_data).find("the task's data: expected the data that"),
            std::string::npos);
  other_model.bias_ = false;
  EXPECT_EQ(refused(options, other_model),
            "--resume: bias is false, the checkpoint's is true: a run goes on with the model that "
            "it has");
}

// Simulates a program that is started with an empty argv.
TEST(OwnTaskChecks, AProgramWithoutWordsSaysWhatIsMissing) {
  SumTask task;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_program(task, 0, nullptr), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sum: --out is missing: name a folder for the run\n");
}

TEST(OwnTaskChecks, WhatItsSettingsNeedMustBeGivenToo) {
  TemporaryFolder folder;
  const auto said = [&](std::vector<std::string> words) {
    SumTask task;
    Task* const only[] = {&task};
    words.insert(words.end(), {"--out", "out"});
    return test::message_of([&] { check_run(*parse_command_line("sum", only, words).run, 2); });
  };
  EXPECT_EQ(said({"--top-k", "2"}), "--top-k 2 needs --experts N");
  EXPECT_EQ(said({"--top-k", "1"}), "nothing was thrown");
  EXPECT_EQ(said({"--top-k", "2", "--experts", "4"}),
            "--experts 4 needs --mesh dp=N, found no --mesh");
  EXPECT_EQ(said({"--top-k", "2", "--experts", "4", "--mesh", "dp=2"}), "nothing was thrown");
  std::ofstream(folder / "run.toml") << "top-k = 2\n";
  const std::string file = folder / "run.toml";
  EXPECT_EQ(said({"--config", file}), "--top-k 2 needs --experts N");
}

TEST(OwnTaskChecks, StopsEarly) {
  TemporaryFolder folder;
  Options options = of_sums(folder);
  options.lr = 0;
  options.patience = 2;
  SumTask task;
  Report report = train(task, options, Group());
  EXPECT_TRUE(report.stopped_early);
  EXPECT_EQ(report.step, 30);
}

// The defaults of load_validation(), data_fingerprint() and measure().
TEST(OwnTaskChecks, TheDefaultsOfATask) {
  TemporaryFolder folder;
  SumTask task;
  task.load_validation(of_sums(folder), Group(), "");
  EXPECT_EQ(test::message_of([&] { task.load_validation(of_sums(folder), Group(), "x"); }),
            "x: the task sum measures no other data than its own");
  const std::string before = task.data_fingerprint();
  EXPECT_TRUE(before.starts_with("21 samples, the first ones of 84 elements")) << before;
  task.scale_ = 3;
  task.load(of_sums(folder), Group());
  EXPECT_NE(task.data_fingerprint(), before);
  (void)task.make_model();
  const std::vector<std::size_t> samples{0, 1, 2};
  Batch batch = task.validation(samples);
  Totals found = task.measure(batch);
  EXPECT_EQ(found.targets, 3);
  EXPECT_DOUBLE_EQ(found.loss, task.loss(batch).item<double>() * 3);
}

TEST(TaskHelpers, NeighbouringStreamsHaveUnrelatedSeeds) {
  std::set<std::uint64_t> seeds;
  for (std::int64_t seed = 0; seed < 30; ++seed)
    for (std::int64_t stream = -30; stream < 30; ++stream) seeds.insert(stream_seed(seed, stream));
  EXPECT_EQ(seeds.size(), 30u * 60u);
  EXPECT_EQ(stream_seed(7, 3), stream_seed(7, 3));
}

TEST(TaskHelpers, AFingerprintIsOfSizesAndBytes) {
  const at::Tensor some = torch::arange(6), other = torch::arange(1, 7);
  EXPECT_TRUE(fingerprint_of_tensors({some, other}).starts_with("12 elements, crc32 "));
  EXPECT_EQ(fingerprint_of_tensors({some}), fingerprint_of_tensors({some.clone()}));
  EXPECT_NE(fingerprint_of_tensors({some}), fingerprint_of_tensors({other}));
  EXPECT_NE(fingerprint_of_tensors({some, other}), fingerprint_of_tensors({other, some}));
}

TEST(MicroBatches, CutEveryTensorAlongItsRows) {
  Batch batch(torch::arange(14).view({7, 2}), torch::arange(7), {torch::arange(7) + 10});
  auto parts = micro_batches(batch, 3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].data.size(0), 1);
  EXPECT_TRUE(parts[1].target.equal(torch::tensor({3, 4, 5})));
  EXPECT_TRUE(parts[1].more.at(0).equal(torch::tensor({13, 14, 15})));
  batch.more[0] = torch::arange(6);
  EXPECT_NE(test::message_of([&] { (void)micro_batches(batch, 3); }).find("expected 7 rows"),
            std::string::npos);
  EXPECT_THROW((void)micro_batches(Batch(torch::ones({}), torch::ones({})), 1), InvalidArgument);
}

TEST(MicroBatches, FloatingPointInputsAreCast) {
  Batch batch(torch::ones({2, 2}), torch::ones({2}), {torch::arange(2), torch::ones({2})});
  Batch cast = cast_batch(batch, at::kBFloat16);
  EXPECT_EQ(cast.data.scalar_type(), at::kBFloat16);
  EXPECT_EQ(cast.target.scalar_type(), at::kFloat);
  EXPECT_EQ(cast.more[0].scalar_type(), at::kLong);
  EXPECT_EQ(cast.more[1].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(cast_batch(batch, std::nullopt).data.is_same(batch.data));
}

// Rank 1 drops rows: it would have fewer micro-batches, and its gradients would have the same
// weight as those of more rows.
class UnevenTask : public SumTask {
 public:
  explicit UnevenTask(int rank) : rank_(rank) {}
  [[nodiscard]] Batch batch(std::int64_t step) override {
    Batch batch = SumTask::batch(step);
    if (rank_ != 1 || step < 2) return batch;
    return {batch.data.narrow(0, 0, 1), batch.target.narrow(0, 0, 1)};
  }

 private:
  int rank_;
};

TEST(OwnTask, UnevenRowsAreRefusedByRank) {
  for (const char* shard : {"none", "full"}) {
    TemporaryFolder folder;
    test::run_group(test::BackendKind::shm, 3, [&](Group group) {
      UnevenTask task(group.rank());
      Options options;
      options.out = folder / "out";
      options.steps = 5;
      options.batch = 12;
      options.accumulate = 2;
      set_option(options, "shard", shard);
      options.threads = 1;
      EXPECT_EQ(test::message_of([&] { (void)train(task, options, group); }),
                "Task::batch: step 2: expected equally many rows on all ranks, found 4 on rank 0 "
                "and 1 on rank 1");
    });
  }
}

// Devices need replicas of the model, which this task does not make; servers need no support by the
// task.
TEST(OwnTaskByOtherStrategies, DevicesAreRefusedAndServersTrainIt) {
  TemporaryFolder folder;
  Options options = of_sums(folder);
  options.strategy = StrategyKind::threads;
  options.devices = 2;
  SumTask task;
  EXPECT_EQ(
      test::message_of([&] { (void)train(task, options, Group()); }),
      "--strategy threads: the task sum makes no replicas of its model (Task::make_replica()): "
      "train it with --ranks 2");
  EXPECT_FALSE(fs::exists(options.out));
  options.strategy = StrategyKind::ddp;
  options.devices = 0;
  run_sums(2, options);
  Options served = options;
  served.strategy = StrategyKind::ps;
  served.out += "-served";
  run_sums(3, served);
  EXPECT_EQ(distance(options.out, served.out), 0);
}

}  // namespace
}  // namespace lockstep::train
