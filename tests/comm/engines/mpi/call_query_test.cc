// What a rank concludes from the others' answers: pure, without MPI. The sentences are those of
// docs/errors.md.
#include "comm/engines/mpi/call_query.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::mpi {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t ours = 7;
constexpr std::uint64_t theirs = 8;

CallRecord call(Collective collective, std::uint64_t number, std::uint32_t line, std::string tag) {
  return {.collective = collective,
          .root = has_root(collective) ? 0 : -1,
          .dtype = DType::float32,
          .elements = 1000,
          .tag = std::move(tag),
          .file = "train.cc",
          .line = line,
          .number = number};
}

// Of rank 0, which waits in all_reduce #8 for the ranks `asked`.
CallQuery query_about(const std::set<int>& asked,
                      CallQuery::Cause cause = CallQuery::Cause::deadline) {
  return {.cause = cause,
          .call = call(Collective::all_reduce, 8, 88, "bucket 2"),
          .fingerprint = ours,
          .rank = 0,
          .waited = 1s,
          .asked = asked};
}
const Answer posted{true, ours, 8, call(Collective::all_reduce, 8, 88, "bucket 2")};
const Answer not_posted{false, 0, 7, call(Collective::broadcast, 7, 80, "weights")};
const Answer another{true, theirs, 8, call(Collective::all_gather, 8, 92, "")};

TEST(CallQuery, WhoDoesNotAnswerIsNeeded) {
  auto query = query_about({1, 2, 3});
  query.answers = {{1, posted}, {2, posted}};
  auto report = query.report({"world"});
  EXPECT_EQ(report.kind, diagnose::FailureKind::timeout);
  EXPECT_EQ(report.text,
            "after 1s: rank 3 did not answer, and is needed for all_reduce #8 (bucket 2, 4 kB, "
            "train.cc:88) "
            "that ranks 0-2 wait in");
}

// Another may be silent because of it, or behind.
TEST(CallQuery, WhoIsStoppedIsNamedBeforeAllOthers) {
  auto query = query_about({1, 2, 3});
  query.answers = {{1, not_posted}};
  query.stopped = {{3, "4711"}};
  auto report = query.report({"world"});
  EXPECT_EQ(report.kind, diagnose::FailureKind::timeout);
  EXPECT_EQ(report.text,
            "after 1s: rank 3 did not answer, and is needed for all_reduce #8 (bucket 2, 4 kB, "
            "train.cc:88) "
            "that rank 0 waits in; its process 4711 is stopped; rank 2 did not answer");
}

TEST(CallQuery, WhoDidNotCallIsNamedFirst) {
  auto query = query_about({1, 2, 3});
  query.answers = {{1, posted}, {2, not_posted}};
  auto report = query.report({"world"});
  EXPECT_EQ(report.kind, diagnose::FailureKind::timeout);
  EXPECT_EQ(report.text,
            "after 1s: rank 2 never called all_reduce #8 (bucket 2, 4 kB, train.cc:88) that ranks "
            "0, 1 wait in; "
            "its last call was broadcast #7 (weights, root 0, 1000 x float32, train.cc:80); rank 3 "
            "did not answer");
}

// They may be waiting for the one that is furthest behind.
TEST(CallQuery, WhoHasCalledNothingYetIsNamed) {
  auto query = query_about({1, 2});
  query.answers = {{1, Answer{}}, {2, Answer{}}};
  EXPECT_EQ(query.report({"world"}).text,
            "after 1s: ranks 1, 2 never called all_reduce #8 (bucket 2, 4 kB, train.cc:88) that "
            "rank 0 waits "
            "in; they have made no call yet");
}

TEST(CallQuery, WhoIsFurthestBehindIsNamed) {
  auto query = query_about({1, 2, 3});
  query.answers = {{1, not_posted}, {2, not_posted}, {3, not_posted}};
  query.answers.at(2).call->number = 5;
  EXPECT_EQ(query.report({"world"}).text,
            "after 1s: rank 2 never called all_reduce #8 (bucket 2, 4 kB, train.cc:88) that rank 0 "
            "waits in; its last call was broadcast #5 (weights, root 0, 1000 x float32, "
            "train.cc:80); ranks 1, 3 are behind, too");
}

TEST(CallQuery, ADifferenceComesBeforeADeadline) {
  for (auto cause : {CallQuery::Cause::deadline, CallQuery::Cause::difference}) {
    auto query = query_about({1, 2}, cause);
    query.answers = {{1, not_posted}, {2, another}};
    if (cause == CallQuery::Cause::difference) query.answers.erase(1);
    auto report = query.report({"world"});
    EXPECT_EQ(report.kind, diagnose::FailureKind::mismatch);
    EXPECT_NE(report.text.find("rank 0 called all_reduce #8"), std::string::npos) << report.text;
    EXPECT_NE(report.text.find("rank 2 called all_gather #8 (1000 x float32, train.cc:92)"),
              std::string::npos)
        << report.text;
  }
}

TEST(CallQuery, WhoDiffersAndIsSilentIsNamedAllTheSame) {
  auto report = query_about({2}, CallQuery::Cause::difference).report({"world"});
  EXPECT_EQ(report.kind, diagnose::FailureKind::mismatch);
  EXPECT_NE(report.text.find("where rank 2 called another call, and did not say which"),
            std::string::npos)
      << report.text;
}

TEST(CallQuery, AnswersComeBackAsTheyWereWritten) {
  auto uneven = posted;
  uneven.call->input_counts.assign(300, 1'000'000);
  for (const auto& answer : {posted, not_posted, another, Answer{}, uneven}) {
    auto text = written(answer, 1000);
    EXPECT_LE(text.size(), 1000U);
    auto read = read_answer(answer.fingerprint, text);
    EXPECT_EQ(read.has_called, answer.has_called);
    EXPECT_EQ(read.fingerprint, answer.fingerprint);
    EXPECT_EQ(read.last, answer.last);
    ASSERT_EQ(read.call.has_value(), answer.call.has_value());
    if (read.call) EXPECT_EQ(describe(*read.call), describe(*answer.call));
  }
}

}  // namespace
}  // namespace lockstep::mpi
