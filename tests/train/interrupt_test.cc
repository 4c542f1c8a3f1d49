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

void do_nothing(int) {}

TEST(Interrupt, BringsBackWhatWasThere) {
  auto old = std::signal(SIGTERM, do_nothing);
  { Interrupt interrupt; }
  EXPECT_EQ(std::signal(SIGTERM, old), do_nothing);
}

TEST(Interrupt, WhatWasIgnoredStaysSo) {
  auto old = std::signal(SIGINT, SIG_IGN);
  Interrupt interrupt;
  std::raise(SIGINT);
  EXPECT_EQ(interrupt.signal(), 0);
  std::signal(SIGINT, old);
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
