// Statements of another rank may contain any bytes: reading, comparing and describing them is safe,
// and a statement that was read can be written again.
#include "comm/diagnose/calls.h"
#include "comm/diagnose/history.h"
#include "comm/diagnose/report.h"
#include "support/fuzz.h"

#include <gtest/gtest.h>

#include <string>

using namespace lockstep;

namespace {

std::string some_statement(test::Random& random) {
  diagnose::CallHistory history;
  const auto calls = 1 + test::below(random, 40);
  for (std::uint64_t number = 1; number <= calls; ++number) {
    auto call = test::reduction(number, static_cast<std::int64_t>(test::below(random, 5)), "a tag");
    if (test::one_in(random, 4)) call.input_counts = {1, 2, 3};
    history.note({}, call, fingerprint_of(call));
  }
  const auto message = test::message(Collective::send, 1, 7);
  history.note({0, 1}, message, fingerprint_of(message));
  return history.statement("host 71 9", test::one_in(random, 2));
}

TEST(StatementFuzz, AnyTextIsReadWithoutHarm) {
  diagnose::CallHistory mine;
  for (std::uint64_t number = 1; number <= 40; ++number)
    mine.note({}, test::reduction(number), fingerprint_of(test::reduction(number)));
  for (test::FuzzRounds rounds("statements"); rounds.next();) {
    const auto text = test::mutated(some_statement(rounds.random()), rounds.random());
    const auto statement = diagnose::Statement::read(text);
    for (const auto& [channel, told] : statement.channels) {
      for (const auto& known : told.calls) {
        EXPECT_FALSE(describe(known.call).empty());
        EXPECT_FALSE(describe_difference(known.call, 0, test::reduction(3), 1).empty());
        const auto again = read_call(written(known.call));
        ASSERT_TRUE(again) << text;
        EXPECT_EQ(fingerprint_of(*again) == fingerprint_of(known.call),
                  again->tag == known.call.tag);
      }
    }
    if (auto difference = mine.compare(statement))
      EXPECT_FALSE(diagnose::mismatch_sentence(*difference, {"world"}, 0, 1).empty());
  }
}

TEST(StatementFuzz, AnyReportIsReadWithoutHarm) {
  const diagnose::FailureReport report{diagnose::FailureKind::timeout, "after 1s: rank 2 was late"};
  for (test::FuzzRounds rounds("reports"); rounds.next();) {
    const auto text = test::mutated(report.written(), rounds.random());
    static_cast<void>(diagnose::FailureReport::read(text).error());
  }
}

}  // namespace
