#include "elastic/goodput.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(Goodput, IsTheShareOfStepsThatAreInTheState) {
  Goodput::Numbers state;
  Goodput first;
  first.begin_round(state);
  EXPECT_EQ(first.share(), 1);
  std::this_thread::sleep_for(20ms);
  first.count_step(state);
  const Goodput::Numbers kept = state;
  std::this_thread::sleep_for(20ms);
  first.count_step(state);  // and then this process is lost
  Goodput second;
  Goodput::Numbers taken_up = kept;
  second.begin_round(taken_up);
  EXPECT_GE(taken_up.at("elastic.elapsed"), kept.at("elastic.elapsed") + 0.02);
  EXPECT_EQ(taken_up.at("elastic.useful"), kept.at("elastic.useful"));
  const double lost = taken_up.at("elastic.elapsed") - kept.at("elastic.elapsed");
  std::this_thread::sleep_for(20ms);
  second.count_step(taken_up);
  const double useful = taken_up.at("elastic.useful");
  EXPECT_NEAR(taken_up.at("elastic.elapsed"), useful + lost, 1e-6);
  EXPECT_LE(second.share(), useful / (useful + lost) + 1e-9);
}

// On the same host, a change of the wall clock has no effect; time is never negative.
TEST(Goodput, DoesNotLookAtTheClockOfTheDayWhereThereIsAnother) {
  Goodput::Numbers state;
  Goodput().begin_round(state);
  state["elastic.day"] += 3600;
  Goodput here;
  here.begin_round(state);
  EXPECT_LT(state["elastic.elapsed"], 3000);
  state["elastic.host"] += 1;
  state["elastic.day"] += 3600;
  const double before = state["elastic.elapsed"];
  Goodput elsewhere;
  elsewhere.begin_round(state);
  EXPECT_EQ(state["elastic.elapsed"], before);
}

}  // namespace
}  // namespace lockstep
