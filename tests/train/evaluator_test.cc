#include "train/evaluator.h"

#include <lockstep/comm/local.h>
#include <lockstep/train/evaluation.h>

#include "support/torch/ranks.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace lockstep::train {
namespace {

// A task in which the only content of a sample is its index.
class Numbers : public Task {
 public:
  explicit Numbers(std::int64_t samples) : samples_(samples) {}
  [[nodiscard]] std::string name() const override { return "numbers"; }
  void load(const Options&, const Group&) override {}
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override { return model_.ptr(); }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return 1; }
  [[nodiscard]] Batch batch(std::int64_t) override { return {}; }
  [[nodiscard]] at::Tensor loss(const Batch&) override { return {}; }
  [[nodiscard]] std::int64_t validation_samples() const override { return samples_; }
  [[nodiscard]] std::int64_t evaluation_rows() const override { return 10; }
  [[nodiscard]] Batch validation(std::span<const std::size_t> samples) override {
    asked_for.assign(samples.begin(), samples.end());
    return {};
  }
  [[nodiscard]] Totals measure(const Batch&) override {
    EXPECT_FALSE(model_->is_training());
    Totals totals;
    for (std::size_t sample : asked_for) {
      measured.insert(sample);
      totals += {.loss = static_cast<double>(sample), .targets = 1};
    }
    return totals;
  }

  std::vector<std::size_t> asked_for;
  std::multiset<std::size_t> measured;

 private:
  std::int64_t samples_;
  torch::nn::Linear model_{1, 1};
};

struct Measured {
  std::multiset<std::size_t> samples;
  double loss = 0;
  bool is_partial = false;
};

Measured chosen_on(int ranks, std::int64_t samples, std::int64_t batches) {
  Measured all;
  std::mutex lock;
  test::run_group(test::Engine::local, ranks, [&](Group group) {
    Numbers task(samples);
    std::shared_ptr<torch::nn::Module> module = task.make_model();
    Evaluator evaluator(task, module, group, {.batches = batches});
    Evaluation found = evaluator.chosen();
    EXPECT_TRUE(module->is_training());
    EXPECT_EQ(evaluator.chosen().loss, found.loss);
    std::multiset<std::size_t> once;
    for (auto sample = task.measured.begin(); sample != task.measured.end();
         sample = task.measured.upper_bound(*sample)) {
      EXPECT_EQ(task.measured.count(*sample), 2u);  // the second evaluation uses the same samples
      once.insert(*sample);
    }
    std::scoped_lock hold(lock);
    all.samples.merge(once);
    all.loss = found.loss;
    all.is_partial = evaluator.is_partial();
  });
  return all;
}

TEST(Evaluator, ChoosesTheSameSamplesOnAnyNumberOfRanks) {
  Measured one = chosen_on(1, 997, 3);
  EXPECT_EQ(one.samples.size(), 30u);
  EXPECT_TRUE(one.is_partial);
  EXPECT_NEAR(one.loss, 997 / 2.0, 997 / 30.0);  // the samples are spread over all of them
  for (int ranks : {2, 3, 5}) {
    Measured several = chosen_on(ranks, 997, 3);
    EXPECT_EQ(several.samples, one.samples) << ranks;
    EXPECT_EQ(several.loss, one.loss) << ranks;
  }
}

TEST(Evaluator, EachSampleCountsOnceWhereThereAreFewer) {
  for (std::int64_t batches : {0, 3, 100})
    for (std::int64_t samples : {1, 7, 29, 30}) {
      Measured all = chosen_on(2, samples, batches);
      EXPECT_EQ(all.samples.size(), static_cast<std::size_t>(samples));
      EXPECT_EQ(std::set(all.samples.begin(), all.samples.end()).size(), all.samples.size());
      EXPECT_FALSE(all.is_partial);
    }
}

TEST(Evaluator, TellsHowFarItIs) {
  Numbers task(35);
  std::vector<double> told;
  Evaluator evaluator(task, task.make_model(), Group(),
                      {.tell = [&](double share) { told.push_back(share); }});
  (void)evaluator.whole();
  EXPECT_EQ(told, (std::vector<double>{10.0 / 35, 20.0 / 35, 30.0 / 35}));
}

// For example, a task may keep a normalisation in evaluation mode while the rest trains.
TEST(Evaluator, EachModuleGoesBackToItsOwnMode) {
  Numbers task(10);
  auto model = std::dynamic_pointer_cast<torch::nn::Module>(task.make_model());
  torch::nn::Sequential inner((torch::nn::Linear(1, 1)), torch::nn::Linear(1, 1));
  model->register_module("inner", inner.ptr());
  inner->eval();
  inner->children()[1]->train();
  Evaluator evaluator(task, model, Group(), {});
  (void)evaluator.whole();
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(inner->is_training());
  EXPECT_FALSE(inner->children()[0]->is_training());
  EXPECT_TRUE(inner->children()[1]->is_training());
}

class EvaluateOn : public testing::TestWithParam<int> {};

// Sample i has i + 1 targets of loss i each: a mean of means over ranks or batches would differ.
Totals measure(std::span<const std::size_t> samples) {
  Totals totals;
  for (std::size_t i : samples)
    totals +=
        {.loss = double(i) * double(i + 1), .targets = double(i + 1), .correct = i % 2 ? 1.0 : 0.0};
  return totals;
}

TEST_P(EvaluateOn, EverySampleCountsOnceWhateverTheTail) {
  for (std::int64_t samples : {1, 2, 7, 24}) {
    for (std::int64_t rows : {1, 3, 100}) {
      std::vector<std::atomic<int>> seen(samples);
      double loss = 0, targets = 0, correct = 0;
      for (std::int64_t i = 0; i < samples; ++i)
        loss += double(i) * double(i + 1), targets += double(i + 1), correct += i % 2;
      run_as_threads(GetParam(), [&](Group group) {
        Evaluation evaluation =
            evaluate(group, samples, rows, [&](std::span<const std::size_t> some) {
              EXPECT_LE(some.size(), static_cast<std::size_t>(rows));
              EXPECT_FALSE(at::GradMode::is_enabled());
              for (std::size_t i : some) ++seen[i];
              return measure(some);
            });
        EXPECT_DOUBLE_EQ(evaluation.loss, loss / targets);
        EXPECT_DOUBLE_EQ(evaluation.accuracy, correct / targets);
      });
      for (std::int64_t i = 0; i < samples; ++i) EXPECT_EQ(seen[i], 1) << i;
    }
  }
}

TEST_P(EvaluateOn, InStepEveryRankMeasuresAsOftenAndNothingCountsTwice) {
  for (std::int64_t samples : {1, 7, 24}) {
    for (std::int64_t rows : {1, 3, 100}) {
      std::vector<int> calls(GetParam());
      std::vector<Evaluation> found(GetParam());
      run_as_threads(GetParam(), [&](Group group) {
        auto counting = [&](std::span<const std::size_t> some) {
          ++calls[group.rank()];
          return measure(some);
        };
        found[group.rank()] = evaluate(group, samples, rows, counting, /*in_step=*/true);
      });
      Group one;
      Evaluation expected = evaluate(one, samples, rows, measure);
      for (int rank = 0; rank < GetParam(); ++rank) {
        EXPECT_EQ(calls[rank], calls[0]);
        EXPECT_DOUBLE_EQ(found[rank].loss, expected.loss);
        EXPECT_DOUBLE_EQ(found[rank].accuracy, expected.accuracy);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EvaluateOn, testing::Values(1, 2, 5));

TEST(EarlyStopping, StopsAfterPatienceEvaluationsWithoutABest) {
  EarlyStopping stopping{.patience = 2};
  EXPECT_TRUE(stopping.update(1.0));
  EXPECT_FALSE(stopping.update(1.0));  // an equal loss is not better
  EXPECT_FALSE(stopping.should_stop());
  EXPECT_TRUE(stopping.update(0.5));  // a new best restarts the count
  EXPECT_FALSE(stopping.update(0.75));
  EXPECT_FALSE(stopping.update(std::nan("")));
  EXPECT_TRUE(stopping.should_stop());
  EXPECT_EQ(stopping.best, 0.5);
}

TEST(EarlyStopping, WithoutPatienceItNeverStops) {
  EarlyStopping stopping;
  for (int i = 0; i < 100; ++i) (void)stopping.update(1.0 + i);
  EXPECT_FALSE(stopping.should_stop());
}

}  // namespace
}  // namespace lockstep::train
