#include "sys/process_info.h"

#include <gtest/gtest.h>

#include <unistd.h>

namespace lockstep::sys {
namespace {

TEST(ProcessStat, IsReadWithAnyName) {
  const auto stat =
      parse_process_stat("41 (a (b) c) S 7 41 41 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 98765 1 2");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->name, "a (b) c");
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 7);
  EXPECT_EQ(stat->start_time, 98765u);
  for (const char* nonsense : {"", "41", "41 (x", "41 x) S", ") ("})
    EXPECT_FALSE(parse_process_stat(nonsense)) << nonsense;
  EXPECT_EQ(parse_process_stat("1 (a) ")->parent, 0);
}

TEST(ProcessStat, IsThatOfALivingProcessOnly) {
  const auto stat = read_process_stat(::getpid());
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->parent, ::getppid());
  EXPECT_GT(stat->start_time, 0u);
  EXPECT_FALSE(read_process_stat(0));
}

}  // namespace
}  // namespace lockstep::sys
