#include "sys/shared_memory.h"

#include "support/alarm_timer.h"
#include "support/messages.h"
#include "support/processes.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <sys/resource.h>

namespace lockstep::sys {
namespace {

TEST(SharedMemory, LargerThanAFileMayBeIsAnErrorAndNoSignal) {
  test::expect_ranks(1, [](int) {
    rlimit limit{1 << 20, 1 << 20};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_EQ(SharedMemory::most_bytes(), 1U << 20);
    auto text = test::message_of<SystemError>([] { (void)SharedMemory::create("test", 1 << 24); });
    test::expect_words(text, {"making 16 MiB of shared memory", "(ulimit -f)"});
    auto memory = SharedMemory::create("test", 1 << 20);
    memory.data()[(1 << 20) - 1] = std::byte{1};
  });
}

// Older kernels interrupt the call for any handled signal, and give its pages back.
TEST(SharedMemory, ATimerDoesNotKeepItFromItsPages) {
  test::expect_ranks(1, [](int) {
    constexpr std::size_t bytes = std::size_t{64} << 20;
    const auto memory = SharedMemory::create("test", bytes);
    const test::AlarmTimer timer;
    EXPECT_TRUE(memory.reserve(0, bytes));
    EXPECT_GE(memory.resident_bytes(), bytes);
    EXPECT_TRUE(memory.punch(0, bytes));
    EXPECT_EQ(memory.resident_bytes(), 0U);
  });
}

}  // namespace
}  // namespace lockstep::sys
