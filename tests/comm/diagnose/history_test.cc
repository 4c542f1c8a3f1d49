// What ranks state about their calls, and how a difference is found in it.
#include "comm/diagnose/history.h"

#include "comm/diagnose/calls.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>

#include <string>

using namespace lockstep;
using test::reduction;
using watch::Ledger;
using watch::Route;
using watch::Statement;

namespace {

Ledger with_calls(std::uint64_t count, std::uint64_t odd = 0) {
  Ledger ledger;
  for (std::uint64_t number = 1; number <= count; ++number)
    ledger.note({}, reduction(number, number == odd ? 5 : 4));
  return ledger;
}

Statement statement_of(const Ledger& ledger) {
  return Statement::read(ledger.statement("host 71 9", false));
}

TEST(Ledger, AStatementIsReadAsItWasWritten) {
  Ledger ledger;
  ledger.note({}, reduction(1, 3, "two\nlines"));
  ledger.note({0, 2},
              PostedCall({.collective = Collective::send, .root = 2, .input = at::empty({7})}, 1));
  const auto statement = Statement::read(ledger.statement("host 71 9", true));
  EXPECT_EQ(statement.process, "host 71 9");
  EXPECT_TRUE(statement.has_left);
  ASSERT_EQ(statement.routes.size(), 2U);
  const auto& collectives = statement.routes.at(Route{});
  EXPECT_EQ(collectives.last, 1U);
  ASSERT_EQ(collectives.calls.size(), 1U);
  EXPECT_NE(collectives.calls[0].text.find("all_reduce #1 (sum, 3 x Float, two lines) at "),
            std::string::npos)
      << collectives.calls[0].text;
  EXPECT_EQ(statement.routes.at({0, 2}).calls[0].fingerprint,
            fingerprint_of(PostedCall(
                {.collective = Collective::recv, .root = 0, .output = at::empty({7})}, 1)));
}

TEST(Ledger, EqualCallsAgreeWhoeverIsAhead) {
  for (std::uint64_t mine : {1, 2, 31, 32, 33, 300, 2000}) {
    for (std::uint64_t theirs : {1, 31, 32, 40, 300, 2100}) {
      EXPECT_FALSE(with_calls(mine).compare(statement_of(with_calls(theirs))))
          << mine << " and " << theirs;
    }
  }
}

TEST(Ledger, TheFirstDifferenceIsFoundWithBothCalls) {
  for (std::uint64_t at : {1, 5, 24}) {
    for (std::uint64_t ahead : {0, 1, 200}) {
      const auto difference = with_calls(24 + ahead).compare(statement_of(with_calls(24, at)));
      ASSERT_TRUE(difference) << at << " of 24, " << ahead << " ahead";
      EXPECT_EQ(difference->number, at);
      EXPECT_NE(difference->mine.find("4 x Float"), std::string::npos) << difference->mine;
      EXPECT_NE(difference->theirs.find("5 x Float"), std::string::npos) << difference->theirs;
    }
  }
}

TEST(Ledger, AnOlderDifferenceIsFoundByItsChain) {
  const auto difference = with_calls(1000).compare(statement_of(with_calls(1000, 70)));
  ASSERT_TRUE(difference);
  EXPECT_TRUE(difference->mine.empty());
  EXPECT_EQ(difference->number, 96U) << "the first mark after it";
}

TEST(Ledger, OtherRoutesAreNotCompared) {
  Ledger mine, theirs;
  mine.note({0, 1}, reduction(1, 3));
  theirs.note({0, 2}, reduction(1, 4));
  EXPECT_FALSE(mine.compare(statement_of(theirs)));
}

TEST(Ledger, RubbishSaysNothing) {
  for (const char* text :
       {"", "\n\n", "route", "route 1\ncall 1", "call 1 2 3 x", "mark 1 zz",
        "route -1 -1 5\ncall x y z w\nmark 3", "process", "left left\nroute a b c"}) {
    const auto statement = Statement::read(text);
    EXPECT_FALSE(with_calls(5).compare(statement)) << text;
  }
}

}  // namespace
