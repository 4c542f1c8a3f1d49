#include "comm/rendezvous/meeting.h"

#include <lockstep/base/error.h>
#include <lockstep/store/memory_store.h>

#include "support/messages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;

AllgatherOptions between(int rank) {
  return {.prefix = "hello/",
          .rank = rank,
          .size = 4,
          .purpose = "to call init()",
          .remind_after = 30ms};
}

struct Waited {
  std::string error, log;
};

// The error and log of `rank` if only the ranks in `here` have arrived.
Waited wait_as(int rank, const std::vector<int>& here) {
  MemoryStore store;
  for (int other : here) store.set("hello/" + std::to_string(other), "words");
  testing::internal::CaptureStderr();
  Waited waited;
  waited.error = test::message_of<Timeout>(
      [&] { static_cast<void>(allgather_text(store, between(rank), "words", 300ms)); });
  waited.log = testing::internal::GetCapturedStderr();
  return waited;
}

TEST(AllgatherText, MissingRanksAreNamedLongBeforeTheTimeout) {
  const Waited waited = wait_as(0, {2});
  EXPECT_TRUE(test::contains(waited.error,
                             "rank 0 of 4 timed out after 300ms waiting for ranks 1, 3 to call"))
      << waited.error;
  EXPECT_TRUE(test::contains(waited.log,
                             "rank 0 of 4 has waited 30ms for ranks 1, 3 to call init(), and gives "
                             "up in 1s"))
      << waited.log;
}

TEST(AllgatherText, TheLowestRankThatIsThereNamesThem) {
  EXPECT_TRUE(test::contains(wait_as(1, {2}).log, "waited 30ms for ranks 0, 3")) << "rank 1";
  EXPECT_EQ(wait_as(2, {1}).log, "");
  EXPECT_EQ(wait_as(3, {0, 1}).log, "");
}

// Counts the reads of keys.
class CountingStore final : public MemoryStore {
 public:
  std::optional<std::string> try_get(std::string_view key) override {
    ++asked;
    return MemoryStore::try_get(key);
  }
  int asked = 0;
};

TEST(AllgatherText, AWaitWithoutADeadlineIsNotSpokenOf) {
  MemoryStore store;
  std::jthread late([&] {
    std::this_thread::sleep_for(200ms);
    for (int rank = 1; rank < 4; ++rank) store.set("hello/" + std::to_string(rank), "words");
  });
  testing::internal::CaptureStderr();
  EXPECT_EQ(allgather_text(store, between(0), "words", Duration::max()).size(), 4U);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// All ranks start at once: the total number of reads must not be quadratic in the number of ranks.
TEST(AllgatherText, RanksThatDoNotNameTheMissingAskForOneKey) {
  CountingStore store;
  store.set("hello/0", "words");
  std::jthread late([&] {
    std::this_thread::sleep_for(200ms);
    for (int rank = 1; rank < 3; ++rank) store.set("hello/" + std::to_string(rank), "words");
  });
  EXPECT_EQ(allgather_text(store, between(3), "words", 20s).size(), 4U);
  EXPECT_EQ(store.asked, 1);
}

}  // namespace

}  // namespace lockstep::rendezvous

using namespace lockstep;
using namespace std::chrono_literals;
using rendezvous::MeetingStore;

namespace {

TEST(MeetingStore, ACallThatWaitsEndsWhenThereIsNobodyToMeet) {
  std::atomic<bool> is_over = false;
  MeetingStore store(std::make_shared<MemoryStore>(), [&](Store&) {
    if (is_over.exchange(true)) throw PeerLost("rank 1 has ended");
    return true;
  });
  const auto begin = Clock::now();
  EXPECT_EQ(test::message_of<PeerLost>(
                [&] { static_cast<void>(store.get("never", Deadline::after(60s))); }),
            "rank 1 has ended");
  const std::vector<std::string> keys{"never"};
  EXPECT_THROW(store.wait(keys, Deadline::after(Duration::zero())), PeerLost);
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST(MeetingStore, WhatIsThereIsReadAndDeadlinesHold) {
  auto below = std::make_shared<MemoryStore>();
  int asked = 0;
  MeetingStore store(below, [&](Store&) { return ++asked < 2; });
  below->set("key", "value");
  EXPECT_EQ(store.get("key", Deadline::after(10s)), "value");
  EXPECT_EQ(asked, 0);
  EXPECT_THROW(static_cast<void>(store.get("never", Deadline::after(1s))), Timeout);
  EXPECT_EQ(asked, 3) << "once more than it had something to find";
}

}  // namespace
