// A signal during an evaluation or a sample is handled between two batches or tokens, and the
// resumed run repeats the evaluation.
#include "support/temporary_folder.h"
#include "train/mesh_runs.h"
#include "train/runs.h"
#include "train/tasks/language_models.h"

#include <lockstep/checkpoint/training_state.h>

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::BackendKind;
using test::TemporaryFolder;

// A gpt whose evaluations have many batches, and which sends a signal to its own process.
class SignallingGpt : public GptTask {
 public:
  [[nodiscard]] std::int64_t rows_at_once() const override { return 2; }
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override {
    if (++batches_ == at_batch) std::raise(SIGTERM);
    return GptTask::validation(samples);
  }
  [[nodiscard]] std::string sample_by(std::int64_t length,
                                      const GenerateTokens& generate) override {
    return GptTask::sample_by(length, [&](const at::Tensor& ids, std::int64_t count,
                                          const models::GenerateOptions& options) {
      if (++tokens_ == at_token) std::raise(SIGTERM);
      return generate(ids, count, options);
    });
  }

  int at_batch = 0, at_token = 0;

  [[nodiscard]] int batches() const { return batches_; }
  [[nodiscard]] int tokens() const { return tokens_; }

 private:
  int batches_ = 0, tokens_ = 0;
};

struct Ranks {
  std::string name;
  int ranks = 1;
  std::function<void(Options&)> change = [](Options&) {};
  int signalled = 0;
};

void PrintTo(const Ranks& ranks, std::ostream* out) { *out << ranks.name; }

// The point at which one rank gets a signal.
using Place = std::function<void(SignallingGpt&)>;
void train_until(const Ranks& ranks, const RunSetup& setup, const Place& place,
                 const std::function<void(const Report&, const SignallingGpt&)>& look) {
  test::run_group(BackendKind::shm, ranks.ranks, [&](Group group) {
    SignallingGpt task;
    setup.settle(task);
    if (group.rank() == ranks.signalled) place(task);
    look(train(task, setup, group), task);
  });
}

void train_whole(const Ranks& ranks, const RunSetup& setup) {
  train_until(
      ranks, setup, [](SignallingGpt&) {},
      [](const Report& report, const SignallingGpt&) { EXPECT_EQ(report.signal, 0); });
}

class InterruptedRun : public testing::TestWithParam<Ranks> {
 protected:
  [[nodiscard]] RunSetup setup() const {
    RunSetup setup = text_run(folder_, "gpt");
    GetParam().change(setup);
    return setup;
  }
  // The resumed run gives the same result as a run without a signal.
  void expect_the_same(const RunSetup& whole, RunSetup cut) const {
    cut.resume = true;
    train_whole(GetParam(), cut);
    EXPECT_EQ(distance(whole.out, cut.out), 0);
    expect_same_rows(whole, cut);
    const auto best = [](const RunSetup& of) {
      return checkpoint::read_safetensors(fs::path(of.out) / "best.safetensors").metadata;
    };
    EXPECT_EQ(best(whole).at("val_loss"), best(cut).at("val_loss"));
    EXPECT_EQ(best(whole).at("step"), best(cut).at("step"));
    const auto waited = [](const RunSetup& of) {
      return checkpoint::read_training_state(*checkpoint::latest_checkpoint(of.out))
          .progress.at("waited");
    };
    EXPECT_EQ(waited(whole), waited(cut));
  }

  TemporaryFolder folder_;
};

TEST_P(InterruptedRun, AnEvaluationStopsBetweenTwoBatchesAndIsMadeUpFor) {
  const RunSetup whole = setup();
  train_whole(GetParam(), whole);
  RunSetup cut = whole;
  cut.out += "-cut";
  train_until(
      GetParam(), cut, [](SignallingGpt& task) { task.at_batch = 2; },
      [&](const Report& report, const SignallingGpt& task) {
        EXPECT_EQ(report.signal, SIGTERM);
        EXPECT_EQ(report.step, 3);
        if (task.at_batch > 0) EXPECT_LE(task.batches(), 3) << "the evaluation went on";
      });
  ASSERT_TRUE(fs::exists(fs::path(cut.out) / "step-00000003"));
  EXPECT_EQ(metrics_of(cut.out).size(), 2U) << "the row of step 3 belongs to the next run";
  expect_the_same(whole, cut);
}

// Saving and sampling at the end depend on which ranks hold the model, and not on how they
// communicate.
class RunInterruptedLater : public InterruptedRun {};

TEST_P(RunInterruptedLater, TheLastEvaluationStopsAndTheStepsBeforeItAreSaved) {
  RunSetup whole = setup();
  whole.save_every = whole.eval_every = 0;
  train_whole(GetParam(), whole);
  RunSetup cut = whole;
  cut.out += "-cut";
  train_until(
      GetParam(), cut, [](SignallingGpt& task) { task.at_batch = 2; },
      [&](const Report& report, const SignallingGpt&) {
        EXPECT_EQ(report.signal, SIGTERM);
        EXPECT_EQ(report.step, 6);
      });
  ASSERT_TRUE(fs::exists(fs::path(cut.out) / "step-00000006"));
  EXPECT_FALSE(fs::exists(fs::path(cut.out) / "model.safetensors"));
  expect_the_same(whole, cut);
}

TEST_P(RunInterruptedLater, ASampleStopsBetweenTwoTokens) {
  RunSetup cut = setup();
  cut.sample = 1000;
  cut.sample_every = 2;
  cut.save_every = 0;
  train_until(
      GetParam(), cut, [](SignallingGpt& task) { task.at_token = 3; },
      [&](const Report& report, const SignallingGpt& task) {
        EXPECT_EQ(report.step, 2);
        EXPECT_EQ(report.signal, SIGTERM);
        EXPECT_LE(task.tokens(), 4) << "the sample went on";
      });
}

std::vector<Ranks> all_kinds_of_ranks() {
  return {{"alone", 1},
          {"ddp", 2, [](Options&) {}, 1},
          {"full", 2, [](Options& o) { o.shard = ShardKind::full; }, 1},
          {"tensor", 2, [](Options& o) { o.mesh = parse_axes("tp=2"); }, 1},
          {"copies_of_tensor", 4, [](Options& o) { o.mesh = parse_axes("dp=2,tp=2"); }, 3},
          {"pipeline", 2, [](Options& o) { o.mesh = parse_axes("pp=2"); }, 1},
          {"devices", 1,
           [](Options& o) {
             o.strategy = StrategyKind::threads;
             o.devices = 2;
           }},
          {"servers", 3, [](Options& o) { o.strategy = StrategyKind::ps; }, 1},
          {"local_sgd", 2, [](Options& o) { o.local_sgd.period = 2; }, 1},
          {"diloco", 2, [](Options& o) { o.diloco.inner_steps = 2; }, 1},
          {"slots", 2,
           [](Options& o) {
             o.elastic = true;
             o.accumulate = 1;
           },
           1},
          {"slots_of_tensor", 2,
           [](Options& o) {
             o.elastic = true;
             o.accumulate = 1;
             o.mesh = parse_axes("tp=2");
           },
           1}};
}

std::vector<Ranks> kinds_of_holders() {
  const std::set<std::string> names{"alone", "full", "pipeline", "servers", "slots_of_tensor"};
  std::vector<Ranks> all = all_kinds_of_ranks();
  std::erase_if(all, [&](const Ranks& one) { return !names.contains(one.name); });
  return all;
}

INSTANTIATE_TEST_SUITE_P(, InterruptedRun, testing::ValuesIn(all_kinds_of_ranks()),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(, RunInterruptedLater, testing::ValuesIn(kinds_of_holders()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep::train
