#include "parallel/server/clocks.h"

#include <gtest/gtest.h>

namespace lockstep::ps {
namespace {

using List = std::vector<int>;

Clocks begun(Consistency consistency, int staleness, int workers) {
  Clocks clocks(consistency, staleness, workers);
  for (int worker = 0; worker < workers; ++worker) {
    EXPECT_EQ(clocks.prepare(worker), 0);
    clocks.begin(worker, 0);
  }
  return clocks;
}

TEST(Clocks, SynchronousUpdatesTakeOneGradientOfEach) {
  Clocks clocks = begun(Consistency::synchronous, 0, 3);
  EXPECT_FALSE(clocks.is_update_due());
  clocks.push(2);
  clocks.push(0);
  EXPECT_FALSE(clocks.is_update_due());
  EXPECT_FALSE(clocks.may_pull(0));
  EXPECT_TRUE(clocks.may_pull(1));
  EXPECT_EQ(clocks.waits_for(0), List({1}));
  clocks.push(1);
  EXPECT_TRUE(clocks.is_update_due());
  EXPECT_EQ(clocks.contributors(), List({0, 1, 2}));
  clocks.count_update();
  EXPECT_FALSE(clocks.is_update_due());
  EXPECT_TRUE(clocks.may_pull(0));
}

TEST(Clocks, WorkersThatHaveNotComeAreAwaited) {
  Clocks clocks(Consistency::synchronous, 0, 2);
  clocks.begin(1, 0);
  clocks.push(1);
  EXPECT_FALSE(clocks.is_update_due());
  EXPECT_EQ(clocks.awaited(), List({0}));
  EXPECT_FALSE(clocks.is_empty());
}

TEST(Clocks, ALostWorkerIsWaitedForNoMoreAndItsPushCounts) {
  Clocks clocks = begun(Consistency::synchronous, 0, 3);
  clocks.push(0);
  clocks.remove(0);
  clocks.push(1);
  EXPECT_FALSE(clocks.is_update_due());
  clocks.remove(2);
  EXPECT_TRUE(clocks.is_update_due());
  EXPECT_EQ(clocks.contributors(), List({0, 1}));
  clocks.count_update();
  clocks.push(1);
  EXPECT_EQ(clocks.contributors(), List({1}));
  clocks.remove(1);  // the last one, in the middle of a step
  EXPECT_TRUE(clocks.is_update_due());
  clocks.count_update();
  EXPECT_FALSE(clocks.is_update_due());
  EXPECT_TRUE(clocks.is_empty());
}

// With two servers, one of which is a step ahead, the worker begins with the later step on both.
TEST(Clocks, AJoiningWorkerBeginsWithTheSameStepEverywhere) {
  Clocks behind = begun(Consistency::synchronous, 0, 1);
  EXPECT_EQ(behind.prepare(5), 0);
  behind.push(0);
  EXPECT_FALSE(behind.is_update_due());  // the update is held back
  EXPECT_EQ(behind.waits_for(0), List({5}));
  behind.begin(5, 1);
  EXPECT_TRUE(behind.is_update_due());
  EXPECT_EQ(behind.contributors(), List({0}));
  EXPECT_FALSE(behind.may_pull(5));
  behind.count_update();
  EXPECT_TRUE(behind.may_pull(5));
  behind.push(0);
  EXPECT_FALSE(behind.is_update_due());
  behind.push(5);
  EXPECT_EQ(behind.contributors(), List({0, 5}));
}

// A worker that was removed while it prepared must not be waited for again.
TEST(Clocks, AWorkerThatWasTakenOutDoesNotBegin) {
  Clocks clocks(Consistency::synchronous, 0, 2);
  EXPECT_TRUE(clocks.may_begin(1));
  clocks.begin(0, 0);
  clocks.begin(1, 0);
  EXPECT_FALSE(clocks.may_begin(1));
  (void)clocks.prepare(2);
  EXPECT_TRUE(clocks.may_begin(2));
  clocks.remove(2);
  EXPECT_FALSE(clocks.may_begin(2));
  clocks.remove(1);
  EXPECT_FALSE(clocks.may_begin(1));
  (void)clocks.prepare(1);
  EXPECT_TRUE(clocks.may_begin(1));
}

TEST(Clocks, AWorkerThatIsLostWhileItJoinsHoldsNobody) {
  Clocks clocks = begun(Consistency::synchronous, 0, 1);
  (void)clocks.prepare(1);
  clocks.push(0);
  EXPECT_FALSE(clocks.is_update_due());
  clocks.remove(1);
  EXPECT_TRUE(clocks.is_update_due());
  (void)clocks.prepare(2);
  clocks.begin(2, 3);  // ahead of this server's step
  clocks.remove(2);
  EXPECT_EQ(clocks.contributors(), List({0}));
}

// Server 0 was ahead by one step when the worker joined. The only other worker was lost before its
// push of that step reached this server, so the push will never come.
TEST(Clocks, AStepThatNobodyIsLeftToPushIsSkipped) {
  Clocks behind = begun(Consistency::synchronous, 0, 1);
  for (int step = 0; step < 4; ++step) {
    behind.push(0);
    behind.count_update();
  }
  EXPECT_EQ(behind.prepare(1), 4);
  behind.begin(1, 5);
  EXPECT_FALSE(behind.may_pull(1));
  behind.remove(0);
  EXPECT_FALSE(behind.is_update_due());
  EXPECT_EQ(behind.updates(), 5);
  EXPECT_TRUE(behind.may_pull(1));
  behind.push(1);
  EXPECT_EQ(behind.contributors(), List({1}));
}

// The same situation, but the lost worker's push was complete: it is the last update before the
// skipped steps.
TEST(Clocks, APushThatWasCompleteCountsBeforeStepsAreSkipped) {
  Clocks behind = begun(Consistency::synchronous, 0, 1);
  EXPECT_EQ(behind.prepare(1), 0);
  behind.push(0);
  behind.begin(1, 3);
  EXPECT_EQ(behind.contributors(), List({0}));
  behind.remove(0);
  EXPECT_TRUE(behind.is_update_due());
  behind.count_update();
  EXPECT_EQ(behind.updates(), 3);
  EXPECT_TRUE(behind.may_pull(1));
}

TEST(Clocks, WorkersThatHaveNotComeAreNotWaitedForTooLong) {
  Clocks clocks(Consistency::synchronous, 0, 3);
  clocks.begin(0, 0);
  clocks.begin(1, 0);
  clocks.push(0);
  EXPECT_EQ(clocks.waits_for(0), List({1}));
  EXPECT_EQ(clocks.awaited(), List({2}));
}

TEST(Clocks, StaleWorkersAreAtMostTheBoundAhead) {
  Clocks clocks = begun(Consistency::stale_synchronous, 2, 2);
  for (int step = 0; step < 2; ++step) {
    clocks.push(0);
    EXPECT_TRUE(clocks.may_pull(0));
  }
  clocks.push(0);
  EXPECT_FALSE(clocks.may_pull(0));
  EXPECT_EQ(clocks.waits_for(0), List({1}));
  clocks.push(1);
  EXPECT_TRUE(clocks.may_pull(0));
  EXPECT_EQ(clocks.prepare(7), 1);  // starts at the step of the slowest worker
  clocks.begin(7, 1);
  clocks.push(0);
  EXPECT_FALSE(clocks.may_pull(0));
  clocks.remove(1);
  EXPECT_FALSE(clocks.may_pull(0));
  clocks.remove(7);
  EXPECT_TRUE(clocks.may_pull(0));
}

TEST(Clocks, AsynchronousWorkersNeverWait) {
  Clocks clocks = begun(Consistency::asynchronous, 0, 2);
  for (int step = 0; step < 50; ++step) clocks.push(0);
  EXPECT_TRUE(clocks.may_pull(0));
  EXPECT_FALSE(clocks.is_update_due());
}

}  // namespace
}  // namespace lockstep::ps
