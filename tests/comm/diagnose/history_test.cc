// Tests what ranks publish about their calls, and how a mismatch is found in it.
#include "comm/diagnose/history.h"

#include "comm/diagnose/calls.h"

#include <gtest/gtest.h>

#include <string>

using namespace lockstep;
using diagnose::CallHistory;
using diagnose::Statement;
using test::reduction;

namespace {

void note(CallHistory& history, ChannelKey channel, const CallRecord& call) {
  history.note(channel, call, fingerprint_of(call));
}

CallHistory with_calls(std::uint64_t count, std::uint64_t odd = 0) {
  CallHistory history;
  for (std::uint64_t number = 1; number <= count; ++number)
    note(history, {}, reduction(number, number == odd ? 5 : 4));
  return history;
}

Statement statement_of(const CallHistory& history) {
  return Statement::read(history.statement("host 71 9", false));
}

TEST(CallHistory, AStatementIsReadAsItWasWritten) {
  CallHistory history;
  note(history, {}, reduction(1, 3, "two\nlines"));
  note(history, {0, 2}, test::message(Collective::send, 2, 7));
  const auto statement = Statement::read(history.statement("host 71 9", true));
  EXPECT_EQ(statement.process, "host 71 9");
  EXPECT_TRUE(statement.has_left);
  ASSERT_EQ(statement.channels.size(), 2U);
  const auto& collectives = statement.of({});
  EXPECT_EQ(collectives.last, 1U);
  ASSERT_EQ(collectives.calls.size(), 1U);
  const auto text = describe_fully(collectives.calls[0].call);
  EXPECT_EQ(text.find("all_reduce #1 (two lines, sum, 3 x float32, history_test.cc:"), 0U) << text;
  const auto* sent = statement.of({0, 2}).find(1);
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(sent->fingerprint, fingerprint_of(test::message(Collective::recv, 0, 7)));
  EXPECT_EQ(statement.of({0, 1}).last, 0U) << "nothing is told of it";
}

TEST(CallHistory, FindsCallsByTheirNumbers) {
  const auto history = with_calls(CallHistory::kept + 10);
  EXPECT_EQ(history.find({}, 10), nullptr) << "no longer kept";
  EXPECT_EQ(history.find({}, 11)->call.number, 11U);
  EXPECT_EQ(history.find({}, CallHistory::kept + 11), nullptr);
  EXPECT_EQ(history.find({0, 1}, 1), nullptr);
}

TEST(CallHistory, EqualCallsAgreeWhoeverIsAhead) {
  for (std::uint64_t mine : {1, 2, 31, 32, 33, 300, 2000}) {
    for (std::uint64_t theirs : {1, 31, 32, 40, 300, 2100}) {
      EXPECT_FALSE(with_calls(mine).compare(statement_of(with_calls(theirs))))
          << mine << " and " << theirs;
    }
  }
}

TEST(CallHistory, TheFirstDifferenceIsFoundWithBothCalls) {
  for (std::uint64_t at : {1, 5, 24}) {
    for (std::uint64_t ahead : {0, 1, 200}) {
      const auto difference = with_calls(24 + ahead).compare(statement_of(with_calls(24, at)));
      ASSERT_TRUE(difference) << at << " of 24, " << ahead << " ahead";
      EXPECT_EQ(difference->number, at);
      EXPECT_EQ(difference->mine->elements, 4);
      EXPECT_EQ(difference->theirs->elements, 5);
    }
  }
}

TEST(CallHistory, AnOlderDifferenceIsFoundByItsChain) {
  const auto difference = with_calls(1000).compare(statement_of(with_calls(1000, 70)));
  ASSERT_TRUE(difference);
  EXPECT_FALSE(difference->mine);
  EXPECT_EQ(difference->number, 96U) << "the first mark after it";
}

TEST(CallHistory, OtherChannelsAreNotCompared) {
  CallHistory mine, theirs;
  note(mine, {0, 1}, reduction(1, 3));
  note(theirs, {0, 2}, reduction(1, 4));
  EXPECT_FALSE(mine.compare(statement_of(theirs)));
}

TEST(CallHistory, RubbishSaysNothing) {
  for (const char* text :
       {"", "\n\n", "channel", "channel 1\ncall 1", "call 1 2 3 x", "mark 1 zz",
        "channel -1 -1 5\ncall x y z w\nmark 3", "process", "left left\nchannel a b c"}) {
    const auto statement = Statement::read(text);
    EXPECT_FALSE(with_calls(5).compare(statement)) << text;
  }
}

}  // namespace
