#include <lockstep/store/memory_store.h>

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace lockstep {
namespace {

TEST(MemoryStore, OneKeyWakesAllWhoWait) {
  MemoryStore store;
  std::vector<std::thread> waiting;
  for (int i = 0; i < 5; ++i) {
    waiting.emplace_back([&] { EXPECT_EQ(store.get("key", Deadline::never()), "value"); });
  }
  store.set("other", "");
  store.set("key", "value");
  for (std::thread& thread : waiting) thread.join();
}

}  // namespace
}  // namespace lockstep
