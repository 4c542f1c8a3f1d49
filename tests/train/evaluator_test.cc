#include "train/evaluator.h"

#include "base/format.h"
#include "data/bigram.h"
#include "support/torch/ranks.h"
#include "train/messages.h"
#include "train/runs.h"

#include <lockstep/comm/local.h>
#include <lockstep/data/text.h>
#include <lockstep/train/saved_model.h>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
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
  test::run_group(test::BackendKind::local, ranks, [&](Group group) {
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
  for (std::int64_t batches : {std::int64_t{0}, std::int64_t{3}, std::int64_t{100},
                               std::numeric_limits<std::int64_t>::max()})
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
  EXPECT_EQ(told, (std::vector<double>{8.0 / 35, 17.0 / 35, 26.0 / 35}));
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

namespace fs = std::filesystem;
using test::TemporaryFolder;

SavedEvaluation alone(const EvaluateOptions& options) { return evaluate_saved(options, Group()); }

std::string refusal(const EvaluateOptions& options) {
  std::string message = test::message_of([&] { (void)alone(options); });
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(EvaluateSaved, GivesTheLossThatTheRunEndedWith) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  double expected = last_val_loss(options.out);
  SavedEvaluation found = alone({.run = options.out});
  EXPECT_EQ(found.val_loss, expected);
  data::Text text = data::load_text(options.data);
  EXPECT_EQ(found.line,
            formatted("val_loss={:#.5g} bits_per_character={:#.5g} bigram={:#.4g} step=8 model={}",
                      expected, expected / std::log(2.0),
                      data::bigram_cross_entropy(text.train, text.validation, 8),
                      options.out + "/model.safetensors"));
  RunSetup sharded = options;
  sharded.out += "-full";
  sharded.shard = ShardKind::full;
  run(2, sharded);
  for (int ranks : {1, 2, 3})
    test::run_group(test::BackendKind::shm, ranks, [&](Group group) {
      EXPECT_NEAR(evaluate_saved({.run = sharded.out}, group).val_loss, last_val_loss(sharded.out),
                  1e-6);
    });
}

TEST(EvaluateSaved, MeasuresAllOfAnotherText) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  fs::path alone_file = folder / "alone.safetensors", other = folder / "other.txt";
  fs::copy(fs::path(options.out) / "model.safetensors", alone_file);
  std::ofstream(other) << "banana cab abacus\nban";
  SavedModel saved = read_model(alone_file);
  models::Gpt model = gpt_of(saved);
  at::NoGradGuard no_gradients;
  at::Tensor tokens = saved.tokenizer->encode("banana cab abacus\nban").to(at::kLong);
  double sum = 0;  // one target at a time, within its block
  for (std::int64_t target = 1; target < tokens.size(0); ++target) {
    std::int64_t begin = (target - 1) / 8 * 8;
    at::Tensor seen = tokens.narrow(0, begin, target - begin).unsqueeze(0);
    sum -= at::log_softmax(model->forward(seen)[0][-1], -1)[tokens[target]].item<double>();
  }
  double expected = sum / static_cast<double>(tokens.size(0) - 1);
  SavedEvaluation found = alone({.run = alone_file, .data = other});
  EXPECT_NEAR(found.val_loss, expected, 1e-5);
  EXPECT_EQ(found.line.find("bigram"), std::string::npos) << found.line;  // there is no own text
  // The bigram model of the run's own text, if the run's folder is known.
  found = alone({.run = options.out, .data = other});
  double bigram = data::bigram_cross_entropy(data::load_text(options.data).train, tokens, 8);
  EXPECT_NE(found.line.find(formatted(" bigram={:#.4g} ", bigram)), std::string::npos)
      << found.line;
}

TEST(EvaluateSaved, DigitsHaveAnAccuracyAndMayBeMeasuredInPart) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  test::write_tiny_digits(folder.path(), 50, 600);
  run(1, options);
  SavedEvaluation whole = alone({.run = options.out});
  EXPECT_EQ(whole.val_loss, last_val_loss(options.out));
  EXPECT_EQ(whole.accuracy, metrics_of(options.out).back()["accuracy"].get<double>());
  EXPECT_TRUE(whole.line.starts_with("accuracy=")) << whole.line;
  SavedEvaluation part = alone({.run = options.out, .batches = 1});
  EXPECT_NE(part.val_loss, whole.val_loss);
  EXPECT_TRUE(part.line.ends_with(" eval_batches=1")) << part.line;
  fs::create_directory(folder / "other");
  test::write_tiny_digits(folder / "other", 1, 3);
  SavedEvaluation other = alone({.run = options.out, .data = folder / "other"});
  EXPECT_NEAR(*other.accuracy * 3, std::round(*other.accuracy * 3), 1e-9);
}

TEST(EvaluateSaved, TheMlpMakesItsOwnData) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.seed = 4;
  run(1, options);
  EXPECT_EQ(alone({.run = options.out}).val_loss, last_val_loss(options.out));
  EXPECT_NE(refusal({.run = options.out, .data = folder.path()}).find("makes its own data"),
            std::string::npos);
}

TEST(EvaluateSaved, DataThatIsMissingOrDoesNotFitIsOneLine) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.steps = 1;
  run(1, options);
  fs::path alone_file = folder / "alone.safetensors", other = folder / "other.txt";
  fs::copy(fs::path(options.out) / "model.safetensors", alone_file);
  EXPECT_NE(refusal({.run = alone_file}).find("name some with --data"), std::string::npos);
  std::ofstream(other) << "banana xylophone";
  std::string message = refusal({.run = options.out, .data = other});
  EXPECT_NE(message.find("'x'"), std::string::npos) << message;
  EXPECT_NE(message.find("other.txt"), std::string::npos) << message;
  std::ofstream(other) << "a";
  EXPECT_NE(refusal({.run = options.out, .data = other}).find("expected two tokens or more"),
            std::string::npos);
  std::ofstream(options.data, std::ios::app) << "banana";
  EXPECT_NE(refusal({.run = options.out}).find("found other data"), std::string::npos);
  fs::remove(options.data);
  EXPECT_NE(refusal({.run = options.out}).find("is not there from this folder"), std::string::npos);
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    std::string words =
        test::message_of([&] { (void)evaluate_saved({.run = options.out}, group); });
    EXPECT_NE(words.find("is not there from this folder"), std::string::npos) << words;
  });
}

// The means over no samples are no numbers.
TEST(Evaluation, ATaskWithoutImagesToValidateWithIsRefused) {
  test::TemporaryFolder folder;
  test::write_tiny_digits(folder.path(), 20, 0);
  RunSetup options("mnist");
  options.data = folder.path();
  const auto task = options.make();
  EXPECT_EQ(test::message_of([&] { task->load(options, Group()); }),
            folder.path().string() + ": expected images to validate with, found none");
}

}  // namespace
}  // namespace lockstep::train
