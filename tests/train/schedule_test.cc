#include "train/schedule.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::train {
namespace {

using Kind = ScheduleOptions::Kind;

TEST(Schedule, ConstantStays) {
  ScheduleOptions options{.lr = 0.5};
  for (std::int64_t step : {0, 1, 1000}) EXPECT_EQ(learning_rate(options, step), 0.5);
}

TEST(Schedule, WarmUpIsALineThatBeginsAboveZeroAndEndsAtTheRate) {
  for (Kind kind : {Kind::constant, Kind::cosine, Kind::step}) {
    ScheduleOptions options{.kind = kind, .lr = 1.0, .warmup = 4, .steps = 100, .step_size = 50};
    EXPECT_DOUBLE_EQ(learning_rate(options, 0), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(options, 3), 0.8);
    EXPECT_DOUBLE_EQ(learning_rate(options, 4), 1.0);
  }
}

TEST(Schedule, CosineFallsFromTheRateToTheLeastAndStaysThere) {
  ScheduleOptions options{
      .kind = Kind::cosine, .lr = 1e-3, .min_lr = 1e-4, .warmup = 100, .steps = 2000};
  EXPECT_DOUBLE_EQ(learning_rate(options, 100), 1e-3);
  EXPECT_NEAR(learning_rate(options, 1050), 5.5e-4, 1e-12);
  EXPECT_NEAR(learning_rate(options, 2000), 1e-4, 1e-15);
  EXPECT_NEAR(learning_rate(options, 5000), 1e-4, 1e-15);
  for (std::int64_t step = 101; step < 2000; ++step)
    EXPECT_LT(learning_rate(options, step), learning_rate(options, step - 1));
}

TEST(Schedule, StepDecaysAtMultiples) {
  ScheduleOptions options{.kind = Kind::step, .lr = 1.0, .step_size = 10, .gamma = 0.5};
  EXPECT_DOUBLE_EQ(learning_rate(options, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 10), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(options, 29), 0.25);
}

TEST(Schedule, WsdFallsAtTheEnd) {
  ScheduleOptions options{
      .kind = Kind::wsd, .lr = 1.0, .min_lr = 0.1, .warmup = 4, .steps = 100, .decay = 30};
  EXPECT_DOUBLE_EQ(learning_rate(options, 0), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 70), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 85), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(options, 100), 0.1);
  options.decay = 0;  // a fifth
  EXPECT_DOUBLE_EQ(learning_rate(options, 80), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 90), 0.55);
}

TEST(Schedule, OneCycleRisesAndFalls) {
  ScheduleOptions options{.kind = Kind::one_cycle, .lr = 1.0, .steps = 100};
  EXPECT_NEAR(learning_rate(options, 0), 1.0 / 25, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(options, 29), 1.0);
  EXPECT_NEAR(learning_rate(options, 99), 1.0 / 25 / 1e4, 1e-12);
  options.warmup = 9;
  EXPECT_DOUBLE_EQ(learning_rate(options, 9), 1.0);
  EXPECT_LT(learning_rate(options, 8), 1.0);
}

TEST(Schedule, ARunOfOneStepHasNoDivisionByZero) {
  EXPECT_DOUBLE_EQ(learning_rate({.kind = Kind::cosine, .lr = 1.0, .warmup = 0, .steps = 0}, 0),
                   1.0);
  EXPECT_DOUBLE_EQ(learning_rate({.kind = Kind::step, .lr = 1.0, .step_size = 0}, 0), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate({.kind = Kind::wsd, .lr = 1.0, .steps = 1}, 0), 1.0);
  EXPECT_TRUE(std::isfinite(learning_rate({.kind = Kind::one_cycle, .lr = 1.0, .steps = 1}, 0)));
}

TEST(Schedule, KindsHaveNames) {
  EXPECT_EQ(schedule_kind("cosine"), Kind::cosine);
  EXPECT_THROW((void)schedule_kind("cosin"), BadInput);
}

}  // namespace
}  // namespace lockstep::train
