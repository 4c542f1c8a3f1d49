#include "launch/agent_state.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

constexpr sys::ExitStatus well{}, code_3{.code = 3}, killed{.signal = SIGKILL},
    interrupted{.signal = SIGINT};

// Three ranks that run from time 0, with grace periods of 30 s and 5 s.
struct Case : testing::Test {
  Case() { life.all_started(); }
  static AgentStateMachine::Time at(Duration since) { return AgentStateMachine::Time(since); }
  AgentStateMachine life{3, {.stop = 30s, .failure = 5s, .notice = 1s}};
};
using AgentStateMachineTest = Case;

TEST_F(AgentStateMachineTest, AllEndWell) {
  for (int rank : {1, 2, 0}) {
    EXPECT_EQ(life.state(), State::running);
    life.ended(rank, well, at(1s));
    EXPECT_EQ(life.take_signal(), std::nullopt);
  }
  EXPECT_EQ(life.state(), State::done);
  EXPECT_EQ(life.cause(), -1);
  EXPECT_EQ(life.exit_code(), 0);
}

// In a run with rounds, SIGTERM is delayed until the end of the round is announced.
TEST_F(AgentStateMachineTest, TheEndOfARoundIsSaidByOthers) {
  AgentStateMachine round{3, {.stop = 30s, .failure = 5s, .notice = std::nullopt}};
  round.all_started();
  round.ended(1, code_3, at(10s));
  EXPECT_EQ(round.state(), State::failed);
  EXPECT_EQ(round.next(), std::nullopt);
  round.end_ranks(at(11s), 100ms);
  EXPECT_EQ(round.next(), at(11100ms));
  round.end_ranks(at(11050ms), 1s);
  EXPECT_EQ(round.next(), at(11100ms)) << "said before";
  round.time_is(at(11100ms));
  EXPECT_EQ(round.take_signal(), SIGTERM);
  round.ended(0, killed, at(12s));
  EXPECT_EQ(round.living(), 1);
  round.left();
  EXPECT_EQ(round.state(), State::done);
  EXPECT_EQ(round.next(), std::nullopt);
  EXPECT_EQ(round.cause(), 1);
  round.end_ranks(at(13s), 100ms);
  EXPECT_EQ(round.state(), State::done);
}

TEST_F(AgentStateMachineTest, AFailureGivesTheOthersAMomentThenSigtermThenSigkill) {
  life.ended(1, code_3, at(10s));
  EXPECT_EQ(life.state(), State::failed);
  EXPECT_EQ(life.take_signal(), std::nullopt);
  EXPECT_EQ(life.next(), at(11s));
  life.time_is(at(10900ms));
  EXPECT_EQ(life.take_signal(), std::nullopt);
  life.time_is(at(11s));
  EXPECT_EQ(life.take_signal(), SIGTERM);
  EXPECT_EQ(life.take_signal(), std::nullopt);  // only once
  EXPECT_EQ(life.next(), at(16s));
  life.time_is(at(16s));
  EXPECT_EQ(life.take_signal(), SIGKILL);
  life.ended(0, killed, at(16s));
  life.ended(2, killed, at(16s));
  EXPECT_EQ(life.state(), State::done);
  EXPECT_EQ(life.cause(), 1);
  EXPECT_EQ(life.exit_code(), 3);
}

TEST_F(AgentStateMachineTest, TheFirstFailureIsTheCause) {
  life.ended(0, well, at(1s));
  life.ended(2, killed, at(2s));
  life.ended(1, code_3, at(2s));
  EXPECT_EQ(life.cause(), 2);
  EXPECT_EQ(life.exit_code(), 137);
}

TEST_F(AgentStateMachineTest, ASignalIsPassedOnAndSigkillFollows) {
  life.signalled(SIGTERM, at(1s));
  EXPECT_EQ(life.state(), State::stopping);
  EXPECT_EQ(life.take_signal(), SIGTERM);
  life.ended(0, well, at(2s));
  life.time_is(at(30s));
  EXPECT_EQ(life.take_signal(), std::nullopt);
  life.time_is(at(31s));
  EXPECT_EQ(life.take_signal(), SIGKILL);
  life.ended(1, killed, at(31s));
  life.ended(2, killed, at(31s));
  EXPECT_EQ(life.exit_code(), 128 + SIGTERM);  // the agent killed it because of the signal
}

TEST_F(AgentStateMachineTest, RanksThatEndWellWhenAskedMakeAGoodEnd) {
  life.signalled(SIGINT, at(1s));
  for (int rank : {0, 1, 2}) life.ended(rank, well, at(2s));
  EXPECT_EQ(life.exit_code(), 0);
  EXPECT_EQ(life.stop_signal(), SIGINT);
}

TEST_F(AgentStateMachineTest, RanksThatTheSignalEndsGiveItsCode) {
  life.signalled(SIGINT, at(1s));
  for (int rank : {0, 1, 2}) life.ended(rank, interrupted, at(2s));
  EXPECT_EQ(life.exit_code(), 130);
}

TEST_F(AgentStateMachineTest, ASecondSigintKillsButNotItsEcho) {
  life.signalled(SIGINT, at(1s));
  EXPECT_EQ(life.take_signal(), SIGINT);
  life.signalled(SIGINT, at(1100ms));  // `timeout -s INT` signals its child, then its group
  EXPECT_EQ(life.take_signal(), std::nullopt);
  life.signalled(SIGINT, at(2s));
  EXPECT_EQ(life.take_signal(), SIGKILL);
}

TEST_F(AgentStateMachineTest, SigintAfterSigtermIsPassedOnAndTheNextOneKills) {
  life.signalled(SIGTERM, at(1s));
  EXPECT_EQ(life.take_signal(), SIGTERM);
  life.signalled(SIGINT, at(2s));
  EXPECT_EQ(life.take_signal(), SIGINT);
  life.signalled(SIGINT, at(3s));
  EXPECT_EQ(life.take_signal(), SIGKILL);
}

TEST_F(AgentStateMachineTest, SigintDuringAFailureKillsAtOnce) {
  life.ended(1, code_3, at(1s));
  life.signalled(SIGINT, at(1100ms));
  EXPECT_EQ(life.take_signal(), SIGKILL);
  EXPECT_EQ(life.exit_code(), 3);
}

TEST_F(AgentStateMachineTest, OtherSignalsAreOnlyPassedOn) {
  life.signalled(SIGUSR1, at(1s));
  EXPECT_EQ(life.state(), State::running);
  EXPECT_EQ(life.take_signal(), SIGUSR1);
}

TEST_F(AgentStateMachineTest, AFailureWhileStoppingIsNoNewFailure) {
  life.signalled(SIGTERM, at(1s));
  EXPECT_EQ(life.take_signal(), SIGTERM);
  life.ended(1, code_3, at(2s));
  EXPECT_EQ(life.state(), State::stopping);
  EXPECT_EQ(life.next(), at(31s));
}

TEST(AgentStateMachine, WhatCannotBeStartedEndsTheOthersAndIsNoRanksFault) {
  AgentStateMachine life(3, {});
  life.could_not_start(2);
  EXPECT_EQ(life.state(), State::failed);
  EXPECT_EQ(life.take_signal(), SIGKILL);
  life.ended(0, killed, {});
  life.ended(1, killed, {});
  EXPECT_EQ(life.state(), State::done);
  EXPECT_EQ(life.cause(), -1);
}

TEST(AgentStateMachine, NothingToEndWhenTheFirstCannotBeStarted) {
  AgentStateMachine life(3, {});
  life.could_not_start(0);
  EXPECT_EQ(life.state(), State::done);
  EXPECT_EQ(life.take_signal(), std::nullopt);
}

TEST(AgentStateMachine, NoGraceMeansAtOnce) {
  AgentStateMachine life(1, {.stop = 0s});
  life.all_started();
  life.signalled(SIGTERM, {});
  EXPECT_EQ(life.take_signal(), SIGTERM);
  life.time_is({});
  EXPECT_EQ(life.take_signal(), SIGKILL);
}

}  // namespace
}  // namespace lockstep::launch
