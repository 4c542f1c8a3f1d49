#include "sys/thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

TEST(TaskQueue, DoesWhatIsLeftInOrderBeforeItEnds) {
  std::vector<int> done;
  sys::TaskQueue queue;
  for (int i = 0; i < 100; ++i) queue.push([&done, i] { done.push_back(i); });
  EXPECT_TRUE(queue.end(10s));
  ASSERT_EQ(done.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
}

TEST(TaskQueue, IsLeftToItselfWhenATaskDoesNotEnd) {
  auto released = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<void>>();
  auto over = ended->get_future();
  std::weak_ptr<std::promise<void>> held = released;
  {
    sys::TaskQueue queue;
    queue.push([released, ended] {
      released->get_future().wait();
      ended->set_value();
    });
    EXPECT_FALSE(queue.end(20ms));
  }
  EXPECT_EQ(over.wait_for(20ms), std::future_status::timeout);
  released->set_value();
  EXPECT_EQ(over.wait_for(10s), std::future_status::ready);
  released.reset();
  ended.reset();
  for (int i = 0; i < 1000 && !held.expired(); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(held.expired());
}

}  // namespace
