#include "optim/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace lockstep::optim {
namespace {

class WithThreads {
 public:
  explicit WithThreads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~WithThreads() { at::set_num_threads(before_); }

 private:
  int before_;
};

TEST(Threads, DoEachPartOnce) {
  for (int threads : {1, 3}) {
    WithThreads with(threads);
    for (std::size_t count : {0, 1, 2, 17, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      for_each_in_parallel(count, [&](std::size_t i) { ++calls[i]; });
      for (auto& number : calls) EXPECT_EQ(number, 1);
    }
  }
}

TEST(Threads, AreSeveral) {
  WithThreads with(2);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  for_each_in_parallel(64, [&](std::size_t) {
    std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(seen.size(), 2U);
}

TEST(Threads, BringBackWhatIsThrown) {
  for (int threads : {1, 2}) {
    WithThreads with(threads);
    EXPECT_THROW(for_each_in_parallel(8,
                                      [](std::size_t i) {
                                        if (i == 5) throw std::runtime_error("part 5");
                                      }),
                 std::runtime_error);
  }
}

}  // namespace
}  // namespace lockstep::optim
