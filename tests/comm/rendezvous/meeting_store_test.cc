#include "comm/rendezvous/meeting_store.h"

#include <lockstep/base/error.h>
#include <lockstep/store/memory_store.h>

#include "support/messages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

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
