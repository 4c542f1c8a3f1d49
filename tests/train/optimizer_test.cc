#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::train {
namespace {

using Kind = ScheduleKind;

double rate(const Options& options, std::int64_t steps, std::int64_t step,
            std::int64_t steps_per_epoch = 1) {
  return schedule_of(options, {steps, steps_per_epoch})(options.lr, step);
}

TEST(Schedule, ConstantStays) {
  const Options options{.lr = 0.5};
  for (std::int64_t step : {0, 1, 1000}) EXPECT_EQ(rate(options, 1, step), 0.5);
}

TEST(Schedule, WarmUpIsALineThatBeginsAboveZeroAndEndsAtTheRate) {
  for (Kind kind : {Kind::constant, Kind::cosine, Kind::step}) {
    const Options options{.lr = 1.0, .schedule = kind, .warmup = 4, .step = {.step_size = 50}};
    EXPECT_DOUBLE_EQ(rate(options, 100, 0), 0.2);
    EXPECT_DOUBLE_EQ(rate(options, 100, 3), 0.8);
    EXPECT_DOUBLE_EQ(rate(options, 100, 4), 1.0);
  }
}

TEST(Schedule, CosineFallsFromTheRateToTheLeastAndStaysThere) {
  const Options options{.lr = 1e-3, .schedule = Kind::cosine, .warmup = 100, .min_lr = 1e-4};
  EXPECT_DOUBLE_EQ(rate(options, 2000, 100), 1e-3);
  EXPECT_NEAR(rate(options, 2000, 1050), 5.5e-4, 1e-12);
  EXPECT_NEAR(rate(options, 2000, 2000), 1e-4, 1e-15);
  EXPECT_NEAR(rate(options, 2000, 5000), 1e-4, 1e-15);
  for (std::int64_t step = 101; step < 2000; ++step)
    EXPECT_LT(rate(options, 2000, step), rate(options, 2000, step - 1));
}

TEST(Schedule, StepDecaysAtMultiples) {
  Options options{.lr = 1.0, .schedule = Kind::step, .step = {.step_size = 10, .gamma = 0.5}};
  EXPECT_DOUBLE_EQ(rate(options, 100, 9), 1.0);
  EXPECT_DOUBLE_EQ(rate(options, 100, 10), 0.5);
  EXPECT_DOUBLE_EQ(rate(options, 100, 29), 0.25);
  options.step.step_size = 0;  // one epoch
  EXPECT_DOUBLE_EQ(rate(options, 100, 6, 7), 1.0);
  EXPECT_DOUBLE_EQ(rate(options, 100, 7, 7), 0.5);
}

TEST(Schedule, WsdFallsAtTheEnd) {
  Options options{.lr = 1.0, .schedule = Kind::wsd, .warmup = 4, .min_lr = 0.1, .decay = 30};
  EXPECT_DOUBLE_EQ(rate(options, 100, 0), 0.2);
  EXPECT_DOUBLE_EQ(rate(options, 100, 4), 1.0);
  EXPECT_DOUBLE_EQ(rate(options, 100, 70), 1.0);
  EXPECT_DOUBLE_EQ(rate(options, 100, 85), 0.55);
  EXPECT_DOUBLE_EQ(rate(options, 100, 100), 0.1);
  options.decay = 0;  // a fifth
  EXPECT_DOUBLE_EQ(rate(options, 100, 80), 1.0);
  EXPECT_DOUBLE_EQ(rate(options, 100, 90), 0.55);
}

TEST(Schedule, OneCycleRisesAndFalls) {
  Options options{.lr = 1.0, .schedule = Kind::one_cycle};
  EXPECT_NEAR(rate(options, 100, 0), 1.0 / 25, 1e-15);
  EXPECT_DOUBLE_EQ(rate(options, 100, 29), 1.0);
  EXPECT_NEAR(rate(options, 100, 99), 1.0 / 25 / 1e4, 1e-12);
  options.warmup = 9;
  EXPECT_DOUBLE_EQ(rate(options, 100, 9), 1.0);
  EXPECT_LT(rate(options, 100, 8), 1.0);
}

TEST(Schedule, ARunOfOneStepHasNoDivisionByZero) {
  EXPECT_DOUBLE_EQ(rate({.lr = 1.0, .schedule = Kind::cosine}, 0, 0), 1.0);
  EXPECT_DOUBLE_EQ(rate({.lr = 1.0, .schedule = Kind::step}, 1, 0, 0), 1.0);
  EXPECT_DOUBLE_EQ(rate({.lr = 1.0, .schedule = Kind::wsd}, 1, 0), 1.0);
  EXPECT_TRUE(std::isfinite(rate({.lr = 1.0, .schedule = Kind::one_cycle}, 1, 0)));
}

}  // namespace
}  // namespace lockstep::train
