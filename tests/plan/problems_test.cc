// Schedules that cannot be executed are detected, and their problem is named.
#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <lockstep/base/error.h>

#include "base/format.h"
#include "plan/mutations.h"
#include "support/fuzz.h"
#include "support/messages.h"

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

using test::below;
using test::expect_words;
using test::FuzzRounds;
using test::message_of;

Schedule some_schedule(test::Random& random) {
  const std::string_view name = schedule_names()[below(random, schedule_names().size())];
  const int ranks = 1 + static_cast<int>(below(random, 4));
  const bool has_two = name == "interleaved" || name == "zbv" || name == "dualpipev";
  int micro_batches = 1 + static_cast<int>(below(random, 6));
  if (name == "interleaved") micro_batches = ranks * (1 + static_cast<int>(below(random, 2)));
  if (name == "dualpipev") micro_batches += 2 * ranks - 1;
  return make_schedule(name, {.stages = ranks * (has_two ? 2 : 1), .micro_batches = micro_batches});
}

struct Found {
  std::uint64_t right = 0, deadlocks = 0, missing = 0, twice = 0;
};

void check_one(test::Random& random, Found& found) {
  const Schedule schedule = changed(some_schedule(random), random);
  const auto problem = find_problem(schedule);
  ASSERT_EQ(!problem, can_be_executed(schedule)) << (problem ? problem->what : "no problem");
  if (!problem) {
    ++found.right;
    EXPECT_GT(simulate(schedule).total(), 0);
    return;
  }
  if (test::contains(problem->what, "deadlock")) ++found.deadlocks;
  if (test::contains(problem->what, "found none")) ++found.missing;
  if (test::contains(problem->what, "expected it once")) ++found.twice;
  ASSERT_LT(problem->rank, schedule.rank_count());
  const auto& actions = schedule.ranks[static_cast<std::size_t>(problem->rank)];
  ASSERT_TRUE(problem->index < actions.size() || actions.empty());
  EXPECT_THROW((void)simulate(schedule), InvalidArgument);
}

// At least 200 rounds of 50 changes: 10,000 in total.
TEST(ScheduleProblems, EveryInjectedMistakeIsFoundAndNothingElse) {
  Found found;
  FuzzRounds rounds("schedule_mutations", 10);
  while (rounds.next())
    for (int i = 0; i < 50 && !HasFatalFailure(); ++i) check_one(rounds.random(), found);
  if (!rounds.enough()) return;
  EXPECT_GT(found.right, 100u);
  EXPECT_GT(found.deadlocks, 100u);
  EXPECT_GT(found.missing, 100u);
  EXPECT_GT(found.twice, 100u);
}

std::string problem_of(std::vector<std::vector<Action>> ranks, int stages, int micro_batches) {
  const auto problem = find_problem({"test", stages, micro_batches, std::move(ranks)});
  return problem ? formatted("{},{}: {}", problem->rank, problem->index, problem->what) : "";
}

constexpr Compute F = Compute::forward, B = Compute::backward, I = Compute::input,
                  W = Compute::weight;

TEST(ScheduleProblems, SayWhereAndWhatWasExpectedAndFound) {
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 0}}}, 1, 1), "");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {I, 0, 0}, {W, 0, 0}}}, 1, 1), "");
  EXPECT_EQ(problem_of({}, 1, 1), "0,0: expected a rank, found none");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 0}}, {}}, 1, 1),
            "1,0: expected an action of this rank, such as 0F0, found none");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 1}}}, 1, 1),
            "0,1: expected stages 0..0 and micro-batches 0..0, found 0B1");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 0}, {I, 0, 0}}}, 1, 1),
            "0,2: 0I0: expected it once, found it after 0B0, which does the same");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 0}, {F, 0, 0}}}, 1, 1),
            "0,2: 0F0: expected it once, found it after 0F0, which does the same");
  EXPECT_EQ(problem_of({{{F, 0, 0}}, {{B, 0, 0}}}, 1, 1),
            "1,0: 0B0: expected stage 0 on rank 0, where 0F0 is, found it here");
  EXPECT_EQ(
      problem_of({{{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {B, 1, 0}, {F, 1, 1}, {B, 1, 1}}}, 2, 2),
      "1,2: 1F1: expected 0F1, which it needs, found none");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}}}, 2, 1),
            "0,1: 0B0: expected 1B0 or 1I0, which it needs, found none");
  EXPECT_EQ(problem_of({{{F, 0, 0}}}, 1, 1),
            "0,0: 0F0: expected its backward 0B0 or 0I0, found none");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {I, 0, 0}}}, 1, 1),
            "0,1: 0I0: expected its gradient of weights 0W0, found none");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 0}, {F, 0, 2}, {B, 0, 2}}}, 1, 3),
            "0,0: expected micro-batches 0..2 in every stage, found no 0F1");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 0}}}, 2, 1),
            "0,1: 0B0: expected 1B0 or 1I0, which it needs, found none");
}

TEST(ScheduleProblems, ADeadlockIsToldAsTheCircleThatItIs) {
  EXPECT_EQ(problem_of({{{B, 0, 0}, {F, 0, 0}}}, 1, 1),
            "0,0: expected an order that ends, found a deadlock: rank 0 waits in 0B0 for 0F0, "
            "which it does later");
  EXPECT_EQ(problem_of({{{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}},
                        {{F, 1, 0}, {F, 1, 1}, {B, 1, 0}, {B, 1, 1}}},
                       2, 2),
            "0,1: expected an order that ends, found a deadlock: rank 0 waits in 0B0 for 1B0 of "
            "rank 1; rank 1 waits in 1F1 for 0F1 of rank 0");
}

TEST(ScheduleProblems, AreAnErrorOfWhoAsksForMore) {
  Schedule schedule = make_schedule("1f1b", {.stages = 2, .micro_batches = 2});
  schedule.ranks[1].pop_back();
  EXPECT_EQ(message_of<InvalidArgument>([&] { check_schedule(schedule); }),
            "schedule 1f1b: rank 0: 0B1: expected 1B1 or 1I1, which it needs, found none");
  expect_words(message_of<InvalidArgument>([&] { (void)simulate(schedule); }), {"rank 0", "1B1"});
}

}  // namespace
}  // namespace lockstep::plan
