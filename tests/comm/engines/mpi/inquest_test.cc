// What a rank concludes from the others' answers: pure, without MPI. The sentences are those of
// docs/errors.md.
#include "comm/engines/mpi/inquest.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::mpi {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t ours = 7;
constexpr std::uint64_t theirs = 8;

// Of rank 0, which waits in all_reduce #8 for the ranks `asked`.
Inquest inquest_about(const std::set<int>& asked, Inquest::Cause cause = Inquest::Cause::deadline) {
  Inquest inquest{.cause = cause, .fingerprint = ours, .rank = 0, .waited = 1s, .asked = asked};
  inquest.call.collective = Collective::all_reduce;
  inquest.call.number = 8;
  inquest.call.tag = "bucket 2";
  inquest.call.dtype = at::kFloat;
  inquest.call.elements = 1000;
  return inquest;
}
const Answer posted{Answer::State::posted, ours, 8, "all_reduce #8"};
const Answer not_posted{Answer::State::not_posted, 0, 7, "broadcast #7 (weights) at train.cc:80"};
const Answer another{Answer::State::posted, theirs, 8, "barrier #8 at train.cc:92"};

TEST(Inquest, WhoDoesNotAnswerIsNeeded) {
  auto inquest = inquest_about({1, 2, 3});
  inquest.answers = {{1, posted}, {2, posted}};
  auto verdict = judge(inquest, "world");
  EXPECT_EQ(verdict.kind, 'T');
  EXPECT_EQ(verdict.text,
            "after 1s: rank 3 did not answer, and is needed for all_reduce #8 (bucket 2, 4 kB) "
            "that ranks 0-2 wait in");
}

// Another may be silent because of it, or behind.
TEST(Inquest, WhoIsStoppedIsNamedBeforeAllOthers) {
  auto inquest = inquest_about({1, 2, 3});
  inquest.answers = {{1, not_posted}};
  inquest.stopped = {{3, 4711}};
  auto verdict = judge(inquest, "world");
  EXPECT_EQ(verdict.kind, 'T');
  EXPECT_EQ(verdict.text,
            "after 1s: rank 3 did not answer, and is needed for all_reduce #8 (bucket 2, 4 kB) "
            "that rank 0 waits in; its process 4711 is stopped; rank 2 did not answer");
}

TEST(Inquest, WhoDidNotCallIsNamedFirst) {
  auto inquest = inquest_about({1, 2, 3});
  inquest.answers = {{1, posted}, {2, not_posted}};
  auto verdict = judge(inquest, "world");
  EXPECT_EQ(verdict.kind, 'T');
  EXPECT_EQ(verdict.text,
            "after 1s: rank 2 never called all_reduce #8 (bucket 2, 4 kB) that ranks 0, 1 wait in; "
            "its last call was broadcast #7 (weights) at train.cc:80; rank 3 did not answer");
}

// They may be waiting for the one that is furthest behind.
TEST(Inquest, WhoHasCalledNothingYetIsNamed) {
  auto inquest = inquest_about({1, 2});
  inquest.answers = {{1, {Answer::State::not_posted, 0, 0, ""}},
                     {2, {Answer::State::not_posted, 0, 0, ""}}};
  EXPECT_EQ(judge(inquest, "world").text,
            "after 1s: ranks 1, 2 never called all_reduce #8 (bucket 2, 4 kB) that rank 0 waits "
            "in; rank 1 has made no call yet; rank 2 has made no call yet");
}

TEST(Inquest, WhoIsFurthestBehindIsNamed) {
  auto inquest = inquest_about({1, 2, 3});
  inquest.answers = {{1, not_posted}, {2, not_posted}, {3, not_posted}};
  inquest.answers.at(2).last = 5;
  EXPECT_EQ(judge(inquest, "world").text,
            "after 1s: rank 2 never called all_reduce #8 (bucket 2, 4 kB) that rank 0 waits in; "
            "its last call was broadcast #7 (weights) at train.cc:80; ranks 1, 3 are behind, too");
}

TEST(Inquest, ADifferenceComesBeforeADeadline) {
  for (auto cause : {Inquest::Cause::deadline, Inquest::Cause::difference}) {
    auto inquest = inquest_about({1, 2}, cause);
    inquest.answers = {{1, not_posted}, {2, another}};
    if (cause == Inquest::Cause::difference) inquest.answers.erase(1);
    auto verdict = judge(inquest, "world");
    EXPECT_EQ(verdict.kind, 'M');
    EXPECT_NE(verdict.text.find("rank 0 called all_reduce #8"), std::string::npos) << verdict.text;
    EXPECT_NE(verdict.text.find("rank 2 called barrier #8 at train.cc:92"), std::string::npos)
        << verdict.text;
  }
}

TEST(Inquest, WhoDiffersAndIsSilentIsNamedAllTheSame) {
  auto verdict = judge(inquest_about({2}, Inquest::Cause::difference), "world");
  EXPECT_EQ(verdict.kind, 'M');
  EXPECT_NE(verdict.text.find("where rank 2 called another call, and did not say which"),
            std::string::npos)
      << verdict.text;
}

TEST(Inquest, AnswersComeBackAsTheyWereWritten) {
  for (const auto& answer : {posted, not_posted, another, Answer{}}) {
    auto read = read_answer(answer.fingerprint, written(answer));
    EXPECT_EQ(read.state, answer.state);
    EXPECT_EQ(read.fingerprint, answer.fingerprint);
    EXPECT_EQ(read.last, answer.last);
    EXPECT_EQ(read.text, answer.text);
  }
}

}  // namespace
}  // namespace lockstep::mpi
