// Other processes' private memory.
#include "comm/engines/shm/private_memory.h"

#include "support/processes.h"
#include "sys/process.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include <unistd.h>

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;

// The kernel gives numbers of processes that have ended to others: here, as it were, to this one.
TEST(PrivateMemory, OfAProcessThatHasEndedIsNotThatOfTheNextWithItsNumber) {
  int value = 7;
  Place place{reinterpret_cast<std::byte*>(&value), ::getpid(), -1};
  if (int seen = 0; read_private(reinterpret_cast<std::byte*>(&seen), place, sizeof seen) != 0)
    GTEST_SKIP() << "the system forbids it";
  test::RankProcesses ended(1, [](int) { ::pause(); });
  auto descriptor = sys::open_pidfd(ended.pid(0));
  place.descriptor = descriptor.get();

  int seen = 0;
  EXPECT_EQ(read_private(reinterpret_cast<std::byte*>(&seen), place, sizeof seen), 0);
  EXPECT_EQ(seen, 7);
  int other = 8;
  EXPECT_EQ(write_private(place, reinterpret_cast<std::byte*>(&other), sizeof other), 0);
  EXPECT_EQ(value, 8);

  ended.kill(0, SIGKILL);
  (void)ended.wait(0, 20s);
  other = 9;
  EXPECT_EQ(read_private(reinterpret_cast<std::byte*>(&seen), place, sizeof seen), ESRCH);
  EXPECT_EQ(write_private(place, reinterpret_cast<std::byte*>(&other), sizeof other), ESRCH);
  EXPECT_EQ(value, 8);
}

}  // namespace
}  // namespace lockstep::shm
