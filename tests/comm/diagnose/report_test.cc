// The sentence for a missed deadline: which ranks it names, and in which order.
#include "comm/diagnose/report.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::diagnose {
namespace {

using namespace std::chrono_literals;

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

const CallRecord due = call(Collective::all_reduce, 8, 88, "bucket 2");

PeerStatus waits(int rank) { return {.rank = rank, .has_called = true, .last = due}; }
PeerStatus is_at(int rank, std::uint64_t number) {
  return {.rank = rank, .last = call(Collective::broadcast, number, 80, "weights")};
}

std::string sentence(const std::vector<PeerStatus>& peers) {
  return overdue_sentence(due, peers, 1s, {"world"});
}

TEST(OverdueSentence, NamesTheRankThatDidNotCall) {
  EXPECT_EQ(
      sentence({waits(0), waits(1), is_at(2, 7)}),
      "after 1s: rank 2 never called all_reduce #8 (bucket 2, 3.91 KiB, train.cc:88) that ranks "
      "0, 1 wait in; its last call was broadcast #7 (weights, root 0, 1000 x float32, "
      "train.cc:80)");
}

TEST(OverdueSentence, NamesRanksThatHaveMadeNoCall) {
  EXPECT_EQ(
      sentence({waits(0), {.rank = 1}, {.rank = 2}}),
      "after 1s: ranks 1, 2 never called all_reduce #8 (bucket 2, 3.91 KiB, train.cc:88) that "
      "rank 0 waits in; they have made no call yet");
}

// The other late ranks may wait for this one.
TEST(OverdueSentence, NamesTheRankThatIsFurthestBehindFirst) {
  EXPECT_EQ(
      sentence({waits(0), is_at(1, 7), is_at(2, 5), is_at(3, 7)}),
      "after 1s: rank 2 never called all_reduce #8 (bucket 2, 3.91 KiB, train.cc:88) that rank 0 "
      "waits in; its last call was broadcast #5 (weights, root 0, 1000 x float32, "
      "train.cc:80); ranks 1, 3 are behind, too");
}

// A stopped rank may not have published its last call.
TEST(OverdueSentence, NamesAStoppedRankBeforeAllOthers) {
  auto stopped = is_at(3, 7);
  stopped.stopped_process = "4711";
  EXPECT_EQ(
      sentence({waits(0), is_at(1, 6), waits(2), stopped}),
      "after 1s: rank 3 never called all_reduce #8 (bucket 2, 3.91 KiB, train.cc:88) that ranks "
      "0, 2 wait in; its last call was broadcast #7 (weights, root 0, 1000 x float32, "
      "train.cc:80); its process 4711 is stopped; rank 1 is behind, too");
}

}  // namespace
}  // namespace lockstep::diagnose
