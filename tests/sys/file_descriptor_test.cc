#include "sys/file_descriptor.h"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "support/processes.h"

namespace lockstep::sys {
namespace {

// poll() accepts at most as many entries as the limit of open files.
TEST(WaitForEvents, ALoweredLimitOfOpenFilesNeitherBlindsItNorMakesItSpin) {
  test::expect_ranks(1, [](int) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    std::vector<pollfd> entries(40, {-1, POLLIN, 0});
    entries[35].fd = ends[0];
    const rlimit low{20, 20};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    ASSERT_EQ(::poll(entries.data(), entries.size(), 0), -1) << "the test shows nothing";
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      EXPECT_EQ(::write(ends[1], "x", 1), 1);
    });
    const std::clock_t before = std::clock();
    wait_for_events(entries);
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 4);
    EXPECT_EQ(entries[35].revents, POLLIN);
    EXPECT_EQ(entries[0].revents, 0);
    later.join();
  });
}

}  // namespace
}  // namespace lockstep::sys
