// What the benchmarks compute from what they measure.
#include "apps/bench/goal.h"
#include "apps/bench/memory/formula.h"
#include "apps/bench/memory/limit_group.h"
#include "apps/bench/memory/resident.h"
#include "apps/bench/step/modes.h"
#include "apps/bench/step/ratios.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

TEST(Goal, SaysWhatWasMet) {
  Goal least{.must = 1.8, .aim = 2.1};
  EXPECT_EQ(verdict_of(least, 2), ">= 1.8: met; aim 2.1: missed");
  EXPECT_EQ(verdict_of(least, 2.1), ">= 1.8: met; aim 2.1: met");
  EXPECT_EQ(verdict_of(least, 1.7), ">= 1.8: missed; aim 2.1: missed");
  Goal most{.must = 1.05, .aim = 1, .at_least = false};
  EXPECT_EQ(verdict_of(most, 1.02), "<= 1.05: met; aim 1: missed");
  EXPECT_EQ(verdict_of({.must = 4}, 3), ">= 4: missed");
}

TEST(Formula, BytesAParameter) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    double n = ranks;
    EXPECT_DOUBLE_EQ(bytes_a_parameter("none", 4, ranks), 16);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("ddp", 4, ranks), 16);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("optimizer", 4, ranks), 8 + 8 / n);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("gradients", 4, ranks), 4 + 12 / n);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("full", 4, ranks), 16 / n);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("full-node-shared", 4, ranks), 16 / n);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("ddp", 2, ranks), 16);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("optimizer", 2, ranks), 4 + 12 / n);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("gradients", 2, ranks), 2 + 14 / n);
    EXPECT_DOUBLE_EQ(bytes_a_parameter("full", 2, ranks), 16 / n);
  }
  EXPECT_THROW((void)bytes_a_parameter("full", 8, 2), InvalidArgument);
  EXPECT_THROW((void)bytes_a_parameter("zero1", 4, 2), InvalidArgument);
}

TEST(Ratios, GoalsAreOfTheMlpAndTwoRanks) {
  auto goals_in = [](const char* model, int ranks) {
    int goals = 0;
    for (const StepRatio& ratio : step_ratios(model, ranks)) goals += ratio.goal.has_value();
    return goals;
  };
  EXPECT_EQ(goals_in("mlp", 2), 3);
  EXPECT_EQ(goals_in("mlp", 4), 0);
  EXPECT_EQ(goals_in("gpt", 2), 0);
}

TEST(Ratios, AreTakenRoundByRound) {
  std::array<double, 3> theirs{2, 6, 9}, ours{1, 2, 4};
  Spread found = quotients_of(theirs, ours);
  EXPECT_DOUBLE_EQ(found.min, 2);
  EXPECT_DOUBLE_EQ(found.p50, 2.25);
  EXPECT_DOUBLE_EQ(found.max, 3);
  EXPECT_THROW((void)quotients_of(theirs, {}), InvalidArgument);
}

TEST(Modes, HaveCounterparts) {
  EXPECT_EQ(counterpart_of("optimizer"), "zero1");
  EXPECT_EQ(counterpart_of("full-node-shared"), "fsdp2");
  std::vector<std::string> ours{"ddp", "full", "full-node-shared"};
  EXPECT_EQ(counterparts_of(ours), (std::vector<std::string>{"ddp", "fsdp2"}));
  EXPECT_THROW((void)counterpart_of("zero1"), InvalidArgument);
}

TEST(Resident, ReadsWhatLinuxPrints) {
  const std::string text =
      "560000000000-7ffd00000000 ---p 00000000 00:00 0                 [rollup]\n"
      "Rss:                9000 kB\n"
      "Pss:                5000 kB\n"
      "Pss_Dirty:          4100 kB\n"
      "Pss_Anon:           3000 kB\n"
      "Pss_File:           1500 kB\n"
      "Pss_Shmem:           500 kB\n";
  Resident found = parse_resident(text);
  EXPECT_EQ(found.pss, 5000 * 1024);
  EXPECT_EQ(found.anonymous, 3000 * 1024);
  EXPECT_EQ(found.files, 1500 * 1024);
  EXPECT_EQ(found.shared, 500 * 1024);
  EXPECT_THROW((void)parse_resident("Rss: 1 kB\n"), BadInput);
  EXPECT_THROW((void)parse_resident(text.substr(0, text.size() - 20)), BadInput);
}

TEST(Resident, SeesMemoryThatIsTouched) {
  Resident before = resident_now();
  std::vector<char> touched(32 << 20, 1);
  EXPECT_GT(resident_now().pss - before.pss, 31 << 20);
  EXPECT_EQ(touched.back(), 1);
}

TEST(LimitGroup, IsBelowThisProcessesOwn) {
  auto first = memory_control("9:name=systemd:/\n4:cpu,memory:/user/a\n0::/\n");
  ASSERT_TRUE(first);
  EXPECT_EQ(first->folder, "/sys/fs/cgroup/memory/user/a");
  EXPECT_FALSE(first->unified);
  auto second = memory_control("0::/user.slice/b\n");
  ASSERT_TRUE(second);
  EXPECT_EQ(second->folder, "/sys/fs/cgroup/user.slice/b");
  EXPECT_TRUE(second->unified);
  EXPECT_FALSE(memory_control("9:name=systemd:/\n"));
  EXPECT_FALSE(memory_control(""));
}

}  // namespace
}  // namespace lockstep::apps
