#include <lockstep/base/deadline.h>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, PassesOnce) {
  EXPECT_TRUE(Deadline::after(0ns).passed());
  EXPECT_TRUE(Deadline::after(-1s).passed());
  EXPECT_EQ(Deadline::after(-1s).left(), 0ns);
  Deadline far = Deadline::after(1h);
  EXPECT_FALSE(far.passed());
  EXPECT_GT(far.left(), 59min);
  EXPECT_LE(far.left(), 1h);
}

TEST(Deadline, NeverIsNever) {
  for (Deadline never : {Deadline::never(), Deadline::after(Duration::max())}) {
    EXPECT_TRUE(never.is_never());
    EXPECT_FALSE(never.passed());
    EXPECT_EQ(never.left(), Duration::max());
    EXPECT_EQ(never.poll_milliseconds(500), 500);
  }
}

TEST(Deadline, PollWaitsAtLeastAsLong) {
  EXPECT_EQ(Deadline::after(0ns).poll_milliseconds(), 0);
  EXPECT_EQ(Deadline::after(100us).poll_milliseconds(), 1);
  EXPECT_LE(Deadline::after(1h).poll_milliseconds(2000), 2000);
}

TEST(Deadline, TheSoonerWins) {
  EXPECT_LE(Deadline::after(1h).or_sooner(Deadline::after(1s)).left(), 1s);
  EXPECT_LE(Deadline::after(1s).or_sooner(Deadline::never()).left(), 1s);
}

}  // namespace
}  // namespace lockstep
