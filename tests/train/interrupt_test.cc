#include "train/interrupt.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace lockstep::train {
namespace {

TEST(Interrupt, RemembersTheSignal) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    Interrupt interrupt;
    EXPECT_EQ(interrupt.signal(), 0);
    std::raise(signal);
    EXPECT_EQ(interrupt.signal(), signal);
  }
}

TEST(Interrupt, TheFirstSignalCounts) {
  Interrupt interrupt;
  std::raise(SIGTERM);
  std::raise(SIGPIPE);
  EXPECT_EQ(interrupt.signal(), SIGTERM);
}

// A terminal that closes sends SIGHUP more than once; a closed pipe sends SIGPIPE with each line.
TEST(Interrupt, HangUpsAndClosedPipesMayRepeat) {
  for (int signal : {SIGHUP, SIGPIPE}) {
    Interrupt interrupt;
    std::raise(signal);
    std::raise(signal);
    EXPECT_EQ(interrupt.signal(), signal);
  }
}

// killall sends SIGTERM to the launcher and to the ranks, and the launcher forwards its own.
TEST(Interrupt, ASecondSigtermAtOnceIsTheSame) {
  Interrupt interrupt;
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  EXPECT_EQ(interrupt.signal(), SIGTERM);
}

void do_nothing(int) {}

TEST(Interrupt, BringsBackWhatWasThere) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    auto old = std::signal(signal, do_nothing);
    { Interrupt interrupt; }
    EXPECT_EQ(std::signal(signal, old), do_nothing);
  }
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

TEST(InterruptDeathTest, ALaterSigtermEndsTheProcess) {
  EXPECT_EXIT(
      {
        Interrupt interrupt;
        std::raise(SIGTERM);
        std::this_thread::sleep_for(std::chrono::milliseconds(1100));
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace lockstep::train
