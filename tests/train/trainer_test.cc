#include <lockstep/train/trainer.h>

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include "support/temporary_folder.h"
#include "support/torch/ranks.h"
#include "train/messages.h"
#include "train/runs.h"
#include "train/tiny_data.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::BackendKind;
using test::TemporaryFolder;

// The helpers of these tests (runs.h) find an error that a maximum or an old row would hide.
TEST(RunsOfTests, AModelWithANanIsFarFromEveryOther) {
  TemporaryFolder folder;
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const at::Tensor right = at::ones({3}), wrong = at::ones({3});
  wrong.select(0, 1).fill_(std::nan(""));
  const auto write = [&](const char* name, const at::Tensor& first) {
    const fs::path out = folder / name;
    fs::create_directories(out);
    checkpoint::write_safetensors(out / "model.safetensors", {{"a", first}, {"b", right}});
    return out;
  };
  const fs::path one = write("one", right), other = write("other", wrong);
  EXPECT_EQ(distance(one, one), 0);
  EXPECT_EQ(distance(one, other), infinite);
  EXPECT_EQ(distance(other, one), infinite);
  EXPECT_EQ(distance(other, other), 0);  // the same bits
  EXPECT_EQ(test::relative_difference(std::nan(""), 1), infinite);
  EXPECT_EQ(test::relative_difference(1, std::nan("")), infinite);
  EXPECT_DOUBLE_EQ(test::relative_difference(-3, -2), 0.5);
}

TEST(RunsOfTests, ACutRunHasNoLossesOfLaterSteps) {
  TemporaryFolder folder;
  const RunSetup options = tiny_mlp(folder);
  run(1, options);
  const RunSetup cut = cut_at(options, 4);
  const auto before = metrics_of(options.out), rows = metrics_of(cut.out);
  ASSERT_EQ(rows.size(), before.size());
  EXPECT_EQ(rows[3], before[3]);
  EXPECT_EQ(rows[4]["loss"], 1e9);
  EXPECT_EQ(last_val_loss(cut.out), 1e9);
}

class Resume : public testing::TestWithParam<int> {};

void expect_exact_resume(int ranks, const RunSetup& options) {
  run(ranks, options);
  RunSetup again = cut_at(options, 4);
  run(ranks, again);
  EXPECT_EQ(distance(options.out, again.out), 0);
  expect_same_rows(options, again);
}

TEST_P(Resume, AGptGoesOnToTheBitWithDropout) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.dropout = 0.2;
  expect_exact_resume(GetParam(), options);
}

TEST_P(Resume, AnEpochGoesOnInItsMiddle) {
  TemporaryFolder folder;
  expect_exact_resume(GetParam(), tiny_mnist(folder));
}

TEST_P(Resume, SgdWithoutMomentumAndAccumulationGoOn) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.optimizer = OptimizerKind::sgd;
  options.accumulate = 2;
  expect_exact_resume(GetParam(), options);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Resume, testing::Values(1, 3));

TEST(Trainer, AnyNumberOfRanksTrainsTheSameModel) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.steps = 20;
  std::string out = options.out;
  for (int ranks : {1, 2, 3}) {
    options.out = out + std::to_string(ranks);
    run(ranks, options);
  }
  double one = last_val_loss(out + "1");
  EXPECT_LT(one, metrics_of(out + "1")[3]["val_loss"].get<double>());
  for (const char* ranks : {"2", "3"}) EXPECT_NEAR(last_val_loss(out + ranks), one, 1e-3) << ranks;
}

TEST(Trainer, AccumulationIsTheSameStepInParts) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  RunSetup parts = options;
  parts.out += "-parts";
  parts.accumulate = 3;
  run(2, parts);
  EXPECT_LT(distance(options.out, parts.out), 2e-3);
  EXPECT_NEAR(last_val_loss(parts.out), last_val_loss(options.out), 1e-3);
}

// A run whose parameters show the scale of gradients: AdamW and clipping would hide it.
RunSetup by_plain_sgd(RunSetup options) {
  options.optimizer = OptimizerKind::sgd;
  options.momentum = options.clip = 0;
  options.lr = 0.05;
  options.save_every = 0;
  return options;
}

struct WayOfParts {
  int ranks = 1;
  int accumulate = 1;
  const char* shard = "auto";
  const char* mesh = "";
};

// Expects the losses and the model of the run `one`, which is there.
void expect_trained_alike(const RunSetup& one, const WayOfParts& way) {
  RunSetup other = one;
  set_option(other, "shard", way.shard);
  set_option(other, "mesh", way.mesh);
  other.accumulate = way.accumulate;
  const std::string name =
      std::to_string(way.ranks) + "-" + std::to_string(way.accumulate) + way.shard + way.mesh;
  other.out += name;
  run(way.ranks, other);
  const auto expected = metrics_of(one.out), found = metrics_of(other.out);
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double loss = expected[i]["loss"].get<double>();
    EXPECT_NEAR(found[i]["loss"].get<double>(), loss, 1e-5 * loss) << name << ", step " << i + 1;
  }
  EXPECT_LT(distance(one.out, other.out), 1e-5) << name;
}

// The last step of an epoch has 76 rows, so its micro-batches have different numbers of rows.
TEST(Trainer, MicroBatchesAndRanksLeaveTheScaleOfGradients) {
  TemporaryFolder folder;
  RunSetup options = by_plain_sgd(tiny_mlp(folder));
  options.steps = 0;
  options.epochs = 2;
  options.batch = 1340;
  run(1, options);
  for (const WayOfParts& way : {WayOfParts{1, 2}, WayOfParts{1, 5}, WayOfParts{2, 1},
                                WayOfParts{2, 2}, WayOfParts{2, 5}, WayOfParts{2, 5, "full"}})
    expect_trained_alike(options, way);
}

TEST(Trainer, StagesLeaveTheScaleOfGradients) {
  TemporaryFolder folder;
  RunSetup options = by_plain_sgd(tiny_gpt(folder));
  options.steps = options.eval_every = 4;
  options.batch = 20;
  run(1, options);
  for (const WayOfParts& way : {WayOfParts{1, 5}, WayOfParts{2, 2, "auto", "pp=2"},
                                WayOfParts{2, 5, "auto", "pp=2"}, WayOfParts{2, 5, "auto", "tp=2"}})
    expect_trained_alike(options, way);
}

TEST(Trainer, AResumeOnOtherRanksGoesOnWithTheSameBatches) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(2, options);
  RunSetup again = cut_at(options, 4);
  run(1, again);
  EXPECT_NEAR(last_val_loss(again.out), last_val_loss(options.out), 1e-3);
}

TEST(Trainer, LeavesWhatItSays) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  options.keep_checkpoints = 1;
  test::run_group(BackendKind::shm, 2, [&](Group group) {
    Report report = train(options, group);
    EXPECT_EQ(report.step, 10);
    EXPECT_TRUE(report.accuracy.has_value());
    EXPECT_FALSE(report.stopped_early);
    EXPECT_TRUE(report.last_line.starts_with("done: accuracy=")) << report.last_line;
    EXPECT_NE(report.last_line.find(" epochs=2 "), std::string::npos) << report.last_line;
  });
  for (const char* name :
       {"config.toml", "metrics.jsonl", "model.safetensors", "step-00000010/layout.json"})
    EXPECT_TRUE(fs::exists(fs::path(options.out) / name)) << name;
  EXPECT_EQ(checkpoint::list_checkpoints(options.out).size(), 1u);
  auto rows = metrics_of(options.out);
  ASSERT_EQ(rows.size(), 10u);
  EXPECT_TRUE(rows[4].contains("accuracy"));  // the first epoch's end
  EXPECT_EQ(rows[4]["epoch"], 0);
  EXPECT_EQ(rows[5]["epoch"], 1);
  EXPECT_NEAR(rows[5]["lr"].get<double>(), 0.007, 1e-12);
}

TEST(Trainer, LearnsTheTinyDigits) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  options.epochs = 40;
  options.step.gamma = 1;
  run(2, options);
  EXPECT_GT(metrics_of(options.out).back()["accuracy"].get<double>(), 0.9);
}

TEST(Trainer, StopsEarlyAndKeepsTheBest) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.lr = 0;  // no evaluation is better than the first one
  options.steps = 100;
  options.eval_every = 1;
  options.patience = 3;
  test::run_group(BackendKind::shm, 2, [&](Group group) {
    Report report = train(options, group);
    EXPECT_EQ(report.step, 4);
    EXPECT_TRUE(report.stopped_early);
  });
  EXPECT_TRUE(fs::exists(fs::path(options.out) / "best.safetensors"));
  EXPECT_EQ(checkpoint::read_training_state(*checkpoint::latest_checkpoint(options.out))
                .progress.at("waited"),
            "3");
}

TEST(Trainer, ASignalOnOneRankEndsAllWithACheckpoint) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.steps = 10'000'000;
  options.save_every = 0;
  test::run_group(BackendKind::shm, 3, [&](Group group) {
    std::jthread later([&] {
      std::error_code not_there_yet;
      while (fs::file_size(fs::path(options.out) / "metrics.jsonl", not_there_yet) == 0 ||
             not_there_yet)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (group.rank() == 1) ::kill(::getpid(), SIGTERM);
    });
    Report report = train(options, group);
    EXPECT_EQ(report.signal, SIGTERM);
    EXPECT_GT(report.step, 0);
    EXPECT_TRUE(report.last_line.starts_with("stopped: signal=SIGTERM")) << report.last_line;
    EXPECT_NE(report.last_line.find(" weights=" + options.out + "/step-"), std::string::npos);
    EXPECT_EQ(report.resume_command,
              "lockstep train mlp --out " + options.out + " --resume (by the same launcher)");
  });
  auto latest = checkpoint::latest_checkpoint(options.out);
  ASSERT_TRUE(latest);
  EXPECT_FALSE(fs::exists(fs::path(options.out) / "model.safetensors"));
}

TEST(Trainer, ARunIsNeverOverwritten) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  run(1, options);
  auto before = metrics_of(options.out);
  std::string message = test::message_of([&] { (void)train(options, Group()); });
  EXPECT_NE(message.find("holds a run already"), std::string::npos) << message;
  EXPECT_EQ(metrics_of(options.out), before);
  options.resume = true;
  options.out += "-elsewhere";
  message = test::message_of([&] { (void)train(options, Group()); });
  EXPECT_NE(message.find("expected a checkpoint"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(options.out));
}

TEST(Trainer, AFinishedRunThatIsResumedIsFinished) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  run(1, options);
  auto before = metrics_of(options.out);
  options.resume = true;
  run(1, options);
  EXPECT_EQ(metrics_of(options.out), before);
}

// Expects that every rank ends with the same message, and that the run leaves no file.
void expect_refused(const RunSetup& options, int ranks, const std::string& words) {
  test::run_group(BackendKind::shm, ranks, [&](Group group) {
    std::string message = test::message_of([&] { (void)train(options, group); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  });
  EXPECT_FALSE(fs::exists(options.out));
}

TEST(Trainer, BadInputLeavesNothing) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.data = folder / "missing.txt";
  expect_refused(options, 2, "missing.txt");
  std::ofstream(folder / "short.txt") << "abc";
  options.data = folder / "short.txt";
  expect_refused(options, 2, "short.txt");
}

TEST(Trainer, MoreRanksThanSamplesAreRefused) {
  TemporaryFolder folder;
  test::write_tiny_digits(folder.path(), 2, 2);
  RunSetup options("mnist");
  options.data = folder.path();
  options.out = folder / "out";
  options.batch = 3;
  expect_refused(options, 3, "found 2 samples for 3 ranks");
}

TEST(Trainer, ACharacterOutsideTheVocabularyIsRefusedOnResume) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  std::ofstream(options.data, std::ios::app) << "xyz\n";
  options.resume = true;
  std::string message = test::message_of([&] { (void)train(options, Group()); });
  EXPECT_NE(message.find("x"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(Trainer, AModelOfAnotherShapeIsRefusedOnResume) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  options.resume = true;
  options.width = 32;
  EXPECT_THROW((void)train(options, Group()), CollectiveFailure);
}

TEST(Trainer, ALossThatIsNoNumberEndsTheRun) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.optimizer = OptimizerKind::sgd;
  options.lr = 1e6;
  options.steps = 1000;
  test::run_group(BackendKind::shm, 2, [&](Group group) {
    std::string message = test::message_of([&] { (void)train(options, group); });
    EXPECT_NE(message.find("expected a finite loss"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace lockstep::train
