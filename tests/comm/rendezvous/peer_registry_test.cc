#include "comm/rendezvous/peer_registry.h"

#include <lockstep/base/error.h>
#include <lockstep/store/file_store.h>
#include <lockstep/store/memory_store.h>

#include "support/processes.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>

using namespace lockstep;
using namespace std::chrono_literals;
using rendezvous::PeerRegistry;

namespace {

TEST(PeerRegistry, KnowWhatEachOfThemSaid) {
  auto store = std::make_shared<MemoryStore>();
  std::jthread other([&] { PeerRegistry(store, "world", 1, 2, "words of 1", 10s).leave(); });
  const PeerRegistry mine(store, "world", 0, 2, "", 10s);
  EXPECT_EQ(mine.words(0), "");
  EXPECT_EQ(mine.words(1), "words of 1");
  mine.check_processes();
}

TEST(PeerRegistry, ThoseThatDoNotComeAreNamed) {
  auto store = std::make_shared<MemoryStore>();
  try {
    const PeerRegistry alone(store, "world", 1, 3, "", 50ms);
    FAIL() << "nobody else came";
  } catch (const Timeout& error) {
    EXPECT_STREQ(error.what(),
                 "rank 1 of 3 timed out after 50ms waiting for ranks 0, 2 to join group world");
  }
}

TEST(PeerRegistry, MeetWhenAllHaveComeAndPartWhenAllHaveLeft) {
  auto store = std::make_shared<MemoryStore>();
  std::atomic<bool> has_come = false, has_left = false;
  const std::atomic<bool> stop = false;
  std::jthread other([&] {
    const PeerRegistry registry(store, "world", 1, 2, "", 10s);
    std::this_thread::sleep_for(30ms);
    has_come = true;
    registry.meet("all", 2, stop, 10s);
    std::this_thread::sleep_for(30ms);
    has_left = true;
    registry.leave();
  });
  const PeerRegistry mine(store, "world", 0, 2, "", 10s);
  mine.meet("all", 2, stop, 10s);
  EXPECT_TRUE(has_come);
  EXPECT_FALSE(mine.have_all_left());
  mine.leave();
  mine.await_the_others(10s);
  EXPECT_TRUE(has_left);
  EXPECT_TRUE(mine.have_all_left());
}

TEST(PeerRegistry, AMeetingEndsWhenItIsStopped) {
  auto store = std::make_shared<MemoryStore>();
  std::atomic<bool> stop = false;
  const PeerRegistry mine(store, "world", 0, 1, "", 10s);
  std::jthread later([&] {
    std::this_thread::sleep_for(30ms);
    stop = true;
  });
  EXPECT_THROW(mine.meet("0 to 1", 2, stop, 10s), Aborted);
}

TEST(PeerRegistry, AMeetingEndsAtItsDeadline) {
  auto store = std::make_shared<MemoryStore>();
  const std::atomic<bool> stop = false;
  const PeerRegistry mine(store, "world", 0, 1, "", 10s);
  try {
    mine.meet("all", 2, stop, 30ms);
    FAIL() << "no second rank has come";
  } catch (const Timeout& error) {
    EXPECT_STREQ(error.what(),
                 "group world: timed out after 30ms waiting for 2 ranks to connect (all)");
  }
}

// The other process has ended: a rank that waits for it gets an error, and a rank that leaves does
// not wait for it.
TEST(PeerRegistry, AProcessThatHasEndedIsNamed) {
  test::TemporaryFolder folder;
  test::RankProcesses ranks(2, [&](int rank) {
    const PeerRegistry mine(std::make_shared<FileStore>(folder.path()), "world", rank, 2, "", 20s);
    if (rank == 1) std::raise(SIGKILL);
    const std::atomic<bool> stop = false;
    try {
      mine.meet("all", 2, stop, 10s);
      ADD_FAILURE() << "rank 1 has ended";
    } catch (const PeerLost& error) {
      EXPECT_NE(std::string(error.what()).find(" of rank 1 has ended"), std::string::npos);
    }
    mine.await_the_others(0s);
  });
  EXPECT_TRUE(ranks.wait(0, 20s).ok());
}

}  // namespace
