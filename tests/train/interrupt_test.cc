#include <lockstep/train/interrupt.h>

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::train {
namespace {

TEST(Interrupt, RemembersTheSignal) {
  for (int signal : {SIGINT, SIGTERM}) {
    Interrupt interrupt;
    EXPECT_EQ(interrupt.signal(), 0);
    std::raise(signal);
    EXPECT_EQ(interrupt.signal(), signal);
  }
}

TEST(Interrupt, BringsBackWhatWasThere) {
  auto old = std::signal(SIGTERM, SIG_IGN);
  { Interrupt interrupt; }
  EXPECT_EQ(std::signal(SIGTERM, old), SIG_IGN);
}

TEST(InterruptDeathTest, TheSecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        Interrupt interrupt;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace lockstep::train
