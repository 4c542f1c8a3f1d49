#include "plan/mutations.h"
#include "support/fuzz.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

#include <lockstep/base/error.h>
#include <lockstep/plan/schedule.h>

#include <gtest/gtest.h>

#include <fstream>
#include <map>

namespace lockstep::plan {
namespace {

using test::message_of;

std::string text(std::string_view name, ScheduleShape shape) {
  return schedule_text(make_schedule(name, shape));
}

TEST(MakeSchedule, WritesTheSchedulesOfThePapers) {
  EXPECT_EQ(text("gpipe", {.stages = 2, .micro_batches = 3}),
            "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  EXPECT_EQ(text("1f1b", {.stages = 3, .micro_batches = 4}),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  EXPECT_EQ(text("interleaved", {.stages = 4, .micro_batches = 2}),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
  EXPECT_EQ(text("zb-h1", {.stages = 2, .micro_batches = 3}),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
  EXPECT_EQ(text("zbv", {.stages = 2, .micro_batches = 2}),
            "0F0,1F0,1I0,1W0,0F1,0I0,0W0,1F1,1I1,1W1,0I1,0W1\n");
  EXPECT_EQ(text("dualpipev", {.stages = 2, .micro_batches = 2}),
            "0F0,1F0,0F1,1B0,1F1,0B0,1B1,0I1,0W1\n");
}

TEST(MakeSchedule, CanBeExecutedForEveryShapeThatItsDefinitionAllows) {
  for (const std::string_view name : schedule_names())
    for (int ranks = 1; ranks <= 7; ++ranks)
      for (int chunks = 1; chunks <= 3; ++chunks)
        for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
          const bool is_v = name == "zbv" || name == "dualpipev";
          const bool is_allowed = (name == "interleaved" ? chunks >= 2 && micro_batches % ranks == 0
                                                         : chunks == (is_v ? 2 : 1)) &&
                                  (name != "dualpipev" || micro_batches >= 2 * ranks);
          const ScheduleShape shape{
              .stages = ranks * chunks, .chunks = chunks, .micro_batches = micro_batches};
          if (!is_allowed) {
            EXPECT_THROW((void)make_schedule(name, shape), InvalidArgument);
            continue;
          }
          const Schedule schedule = make_schedule(name, shape);
          ASSERT_EQ(schedule.rank_count(), ranks);
          const auto problem = find_problem(schedule);
          ASSERT_FALSE(problem) << name << " " << ranks << " " << chunks << " " << micro_batches
                                << ": " << problem->what;
          ASSERT_TRUE(can_be_executed(schedule));
        }
}

// Ensures that gradients are summed in the same order as in one process.
TEST(MakeSchedule, BackwardsOfAStageComeInTheOrderOfMicroBatches) {
  for (const std::string_view name : schedule_names()) {
    const Schedule schedule = make_schedule(name, {.stages = 8, .micro_batches = 16});
    for (const auto& actions : schedule.ranks) {
      std::map<std::pair<Compute, int>, int> next;
      for (const Action& action : actions) {
        const bool is_backward = action.compute == Compute::input;
        const std::pair kind(is_backward ? Compute::backward : action.compute, action.stage);
        EXPECT_EQ(next[kind]++, action.micro_batch) << name << " " << text_of(action);
        // A B includes a W, so the next separate W has the next number.
        if (action.compute == Compute::backward) ++next[std::pair(Compute::weight, action.stage)];
      }
    }
  }
}

TEST(MakeSchedule, LaysStagesOutAsItsDefinitionSays) {
  const auto ranks = [](std::string_view name, int stages) {
    return rank_of_stages(make_schedule(name, {.stages = stages, .micro_batches = 8}));
  };
  EXPECT_EQ(ranks("1f1b", 4), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(ranks("interleaved", 8), (std::vector{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(ranks("zbv", 8), (std::vector{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(ranks("dualpipev", 8), (std::vector{0, 1, 2, 3, 3, 2, 1, 0}));
}

TEST(MakeSchedule, WhatADefinitionDoesNotAllowIsOneLine) {
  const auto refused = [](std::string_view name, ScheduleShape shape) {
    return message_of<InvalidArgument>([&] { (void)make_schedule(name, shape); });
  };
  EXPECT_EQ(refused("gpip", {}), "unknown schedule 'gpip'; did you mean 'gpipe'?");
  EXPECT_EQ(refused("gpipe", {.stages = 0}), "schedule gpipe: expected 1 to 4096 stages, found 0");
  EXPECT_EQ(refused("gpipe", {.stages = 2, .micro_batches = 0}),
            "schedule gpipe: expected 1 to 65536 micro-batches, found 0");
  EXPECT_EQ(refused("gpipe", {.stages = 4096, .micro_batches = 65536}),
            "schedule gpipe: expected at most 4194304 stages times micro-batches, found 4096 times "
            "65536");
  EXPECT_EQ(refused("1f1b", {.stages = 4, .chunks = 2}),
            "schedule 1f1b: expected 1 chunk (stages of a rank), found 2");
  EXPECT_EQ(refused("zbv", {.stages = 4, .chunks = 1}),
            "schedule zbv: expected 2 chunks (stages of a rank), found 1");
  EXPECT_EQ(refused("interleaved", {.stages = 4, .chunks = 1}),
            "schedule interleaved: expected 2 chunks (stages of a rank) or more, found 1");
  EXPECT_EQ(refused("zbv", {.stages = 5}),
            "schedule zbv: expected stages in multiples of 2 chunks (stages of a rank), found 5");
  EXPECT_EQ(refused("interleaved", {.stages = 6, .micro_batches = 4}),
            "schedule interleaved: expected micro-batches in multiples of 3 ranks, found 4");
  EXPECT_EQ(
      refused("dualpipev", {.stages = 4, .micro_batches = 3}),
      "schedule dualpipev: expected at least 2 micro-batches per rank, 4 for 2 ranks, found 3");
}

TEST(MakeSchedule, FewerMicroBatchesLeaveASchedule) {
  for (const std::string_view name : schedule_names()) {
    const Schedule schedule = make_schedule(name, {.stages = 6, .micro_batches = 12});
    for (const int fewer : {1, 5, 12}) {
      const Schedule first = first_micro_batches(schedule, fewer);
      EXPECT_EQ(first.micro_batches, fewer);
      const auto problem = find_problem(first);
      EXPECT_FALSE(problem) << name << " " << fewer << ": " << problem->what;
    }
    EXPECT_EQ(first_micro_batches(schedule, 12), schedule) << name;
  }
}

TEST(MakeSchedule, ForwardsAloneAreOneForEachStageAndMicroBatch) {
  const Schedule schedule = forward_only(make_schedule("zbv", {.stages = 4, .micro_batches = 2}));
  std::size_t count = 0;
  for (const auto& actions : schedule.ranks) count += actions.size();
  EXPECT_EQ(count, 8u);
}

}  // namespace
namespace {

using test::below;
using test::FuzzRounds;
using test::message_of;

void expect_same(Schedule found, const Schedule& schedule) {
  found.name = schedule.name;
  EXPECT_EQ(found, schedule);
}

TEST(ScheduleFile, EverySchedulePassesThroughAFile) {
  const test::TemporaryFolder folder;
  for (const std::string_view name : schedule_names()) {
    const Schedule schedule = make_schedule(name, {.stages = 6, .micro_batches = 12});
    expect_same(parse_schedule(schedule_text(schedule), "x.csv"), schedule);
    std::ofstream(folder / "x.csv") << schedule_text(schedule);
    const Schedule read = read_schedule(folder / "x.csv");
    EXPECT_EQ(read.name, folder / "x.csv");
    expect_same(read, schedule);
  }
}

TEST(ScheduleFile, BlanksEmptyCellsAndForeignLineEndsAreFine) {
  const Schedule schedule = make_schedule("1f1b", {.stages = 2, .micro_batches = 2});
  for (const char* text :
       {"0F0,0F1,,,0B0,0B1\n,1F0,1B0,1F1,1B1\n", "0F0 , 0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n",
        ",0F0,0F1,0B0,0B1,\n1F0,1B0,1F1,1B1"})
    expect_same(parse_schedule(text, "x"), schedule);
}

std::string refused(std::string_view text) {
  return message_of<BadInput>([&] { (void)parse_schedule(text, "x.csv"); });
}

TEST(ScheduleFile, WhatIsWrongIsOneLineWithItsPlace) {
  const std::string form =
      "expected an action such as 3F12 (stage, F, B, I or W, micro-batch), found ";
  EXPECT_EQ(refused(""), "x.csv:1: expected an action of this rank, such as 0F0, found none");
  EXPECT_EQ(refused("0F0,0B0\n\n"),
            "x.csv:2: expected an action of this rank, such as 0F0, found none");
  EXPECT_EQ(refused("0F0,0B0\n1F0,1X0"), "x.csv:2: " + form + "'1X0'");
  EXPECT_EQ(refused("rank,0F0"), "x.csv:1: " + form + "'rank'");
  EXPECT_EQ(refused("0F"), "x.csv:1: " + form + "'0F'");
  EXPECT_EQ(refused("F0"), "x.csv:1: " + form + "'F0'");
  EXPECT_EQ(refused("0F0 0B0"), "x.csv:1: " + form + "'0F0 0B0'");
  EXPECT_EQ(refused("0F-1"), "x.csv:1: " + form + "'0F-1'");
  EXPECT_EQ(refused("0F0\033[31m"), "x.csv:1: " + form + "'0F0\\x1b[31m'");
  EXPECT_EQ(refused("4096F0"),
            "x.csv:1: expected stages below 4096 and micro-batches below 65536, found 4096F0");
  EXPECT_EQ(refused("0F65536"),
            "x.csv:1: expected stages below 4096 and micro-batches below 65536, found 0F65536");
  EXPECT_EQ(refused("4095F65535"),
            "x.csv:1: 4095F65535: expected 4094F65535, which it needs, "
            "found none");
  EXPECT_EQ(refused("0F0,0F1,0B0\n1F0,1B0,1F1,1B1"),
            "x.csv:1: 0F1: expected its backward 0B1 or 0I1, found none");
  EXPECT_EQ(refused("0F0,0B0,0B1\n1F0,1B0,1F1,1B1"),
            "x.csv:1: 0B1: expected 0F1, which it needs, found none");
  EXPECT_EQ(refused("0F0,0B0\n1F0,1B0,1B0"),
            "x.csv:2: 1B0: expected it once, found it after 1B0, which does the same");
  EXPECT_EQ(refused("0B0,0F0\n1F0,1B0"),
            "x.csv:1: expected an order that ends, found a deadlock: rank 0 waits in 0B0 for 0F0, "
            "which it does later");
}

TEST(ScheduleFile, AFileThatIsNoneIsNamed) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(message_of<BadInput>([&] { (void)read_schedule(folder.path()); }),
            "reading " + folder.path().string() + ": expected a file, found a folder");
  EXPECT_THROW((void)read_schedule(folder / "absent.csv"), SystemError);
}

TEST(ScheduleFile, DamagedTextIsReadOrRefused) {
  std::uint64_t read = 0, refused = 0;
  for (FuzzRounds rounds("schedule_file"); rounds.next();) {
    const std::string_view name = schedule_names()[below(rounds.random(), schedule_names().size())];
    const Schedule schedule = make_schedule(name, {.stages = 4, .micro_batches = 4});
    const std::string text = test::mutated(schedule_text(schedule), rounds.random());
    try {
      const Schedule found = parse_schedule(text, "x");
      ASSERT_TRUE(can_be_executed(found));
      expect_same(parse_schedule(schedule_text(found), "x"), found);
      ++read;
    } catch (const BadInput& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      EXPECT_TRUE(std::string(error.what()).starts_with("x:")) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(read, 0u);
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace lockstep::plan
