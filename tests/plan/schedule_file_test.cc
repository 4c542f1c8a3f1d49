#include <lockstep/plan/schedule.h>

#include <lockstep/base/error.h>

#include "plan/mutations.h"
#include "support/fuzz.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>

namespace lockstep::plan {
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
