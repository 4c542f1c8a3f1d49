#include "train/evaluator.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::train {
namespace {

TEST(EarlyStopping, StopsAfterPatienceEvaluationsWithoutABest) {
  EarlyStopping stopping{.patience = 2};
  EXPECT_TRUE(stopping.update(1.0));
  EXPECT_FALSE(stopping.update(1.0));  // equal is not better
  EXPECT_FALSE(stopping.should_stop());
  EXPECT_TRUE(stopping.update(0.5));  // a best begins the count again
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
