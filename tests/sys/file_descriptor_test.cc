#include "sys/file_descriptor.h"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
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
    EXPECT_FALSE(wait_for_events(entries, Deadline::after(std::chrono::milliseconds(50))));
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      EXPECT_EQ(::write(ends[1], "x", 1), 1);
    });
    const std::clock_t before = std::clock();
    EXPECT_TRUE(wait_for_events(entries));
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 4);
    EXPECT_EQ(entries[35].revents, POLLIN);
    EXPECT_EQ(entries[0].revents, 0);
    later.join();
  });
}

int open_nothing() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

TEST(PrivateDescriptor, ForkedChildrenCloseIt) {
  std::vector<PrivateDescriptor> files;
  for (int i = 0; i < 100; ++i) files.emplace_back(open_nothing());
  files.erase(files.begin() + 10, files.begin() + 30);  // moves the files behind them
  for (int i = 0; i < 10; ++i) files.emplace_back(open_nothing());
  std::vector<int> numbers;
  for (const PrivateDescriptor& file : files) numbers.push_back(file.get());
  test::expect_ranks(1, [&](int) {
    for (const int number : numbers) EXPECT_FALSE(is_open(number));
    for (const PrivateDescriptor& copy : files) EXPECT_FALSE(copy);
    const PrivateDescriptor own(open_nothing());
    EXPECT_EQ(own.get(), numbers.front()) << "the lowest free number";
    files.clear();
    EXPECT_TRUE(is_open(own.get()));
    test::expect_ranks(1, [&](int) { EXPECT_FALSE(is_open(numbers.front())); });
  });
  for (const int number : numbers) EXPECT_TRUE(is_open(number));
  files.clear();
  for (const int number : numbers) EXPECT_FALSE(is_open(number));
}

TEST(PrivateDescriptor, MovesAsAFileDescriptorDoes) {
  PrivateDescriptor first(open_nothing());
  const int number = first.get();
  PrivateDescriptor second(std::move(first));
  EXPECT_EQ(second.get(), number);
  PrivateDescriptor third(open_nothing());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_FALSE(is_open(replaced));
  third.reset();
  EXPECT_LT(third.get(), 0);
  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(PrivateDescriptor(-1));
}

}  // namespace
}  // namespace lockstep::sys
