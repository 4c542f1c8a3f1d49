#include <lockstep/train/evaluation.h>

#include <lockstep/comm/local.h>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace lockstep::train {
namespace {

class EvaluateOn : public testing::TestWithParam<int> {};

// Sample i has i + 1 targets of loss i each: a mean of means over ranks or batches would be another
// number.
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

INSTANTIATE_TEST_SUITE_P(Ranks, EvaluateOn, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace lockstep::train
