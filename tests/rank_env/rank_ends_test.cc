#include "rank_env/rank_ends.h"

#include "support/messages.h"

#include <lockstep/base/error.h>
#include <lockstep/store/memory_store.h>
#include <lockstep/store/open.h>
#include <lockstep/store/store_server.h>

#include <gtest/gtest.h>

#include <chrono>

namespace lockstep::rank_env {
namespace {

using namespace std::chrono_literals;

TEST(RankEnds, AreNamedToTheOthersOfTheirAttempt) {
  const StoreServer server({.secret = "swordfish"});
  const std::string address = "tcp://" + server.address();
  const auto store = open_store(address, "swordfish", 10s);
  RankEnds ends(address, "swordfish");
  ends.tell("run/0", 1, "exit code 0");
  static_cast<void>(store->get("lockstep-run/ended/run/0/1", Deadline::after(10s)));
  EXPECT_EQ(test::message_of<PeerLost>([&] { check_rank_ends(*store, "run/0", 0); }),
            "rank 1 ended (exit code 0) before all ranks had met in init()");
  EXPECT_NO_THROW(check_rank_ends(*store, "run/0", 1)) << "that is this rank";
  EXPECT_NO_THROW(check_rank_ends(*store, "run/1", 0)) << "that was another attempt";
}

TEST(RankEnds, NobodyWaitsForAStoreThatHasGone) {
  const auto begin = Clock::now();
  {
    RankEnds ends("tcp://127.0.0.1:9", "swordfish");
    ends.tell("run/0", 1, "exit code 0");
  }
  EXPECT_LT(Clock::now() - begin, 8s);
}

TEST(RankEnds, WhatMakesNoSenseIsPassedOver) {
  MemoryStore store;
  store.set("lockstep-run/ended/run/0/x", "exit code 0");
  EXPECT_NO_THROW(check_rank_ends(store, "run/0", 0));
}

}  // namespace
}  // namespace lockstep::rank_env
