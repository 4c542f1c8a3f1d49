#include "sys/heap.h"
#include "sys/sanitizer.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace lockstep::sys {
namespace {

constexpr std::size_t bytes = 16 << 20;  // larger than the blocks that glibc keeps by default

// Returns the number of page faults while a large block is allocated, filled and freed.
long faults_of_one_block() {
  rusage before{}, after{};
  getrusage(RUSAGE_THREAD, &before);
  auto* block = static_cast<volatile char*>(std::malloc(bytes));
  for (std::size_t i = 0; i < bytes; i += 4096) block[i] = 1;
  std::free(const_cast<char*>(block));
  getrusage(RUSAGE_THREAD, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(Heap, AFreedBlockIsUsedAgainWithoutFreshPages) {
  if (malloc_is_watched) GTEST_SKIP() << "a sanitizer brings its own malloc";
  keep_freed_memory();
  (void)faults_of_one_block();
  EXPECT_LT(faults_of_one_block(), 100);
}

// Must also work with a sanitizer's malloc instead of glibc's.
TEST(Heap, FreedMemoryIsReturnedWhileThreadsComeAndGo) {
  keep_freed_memory();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([] {
        std::free(std::memset(std::malloc(1 << 20), 1, 1 << 20));
        return_freed_memory();
      });
    return_freed_memory();
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace lockstep::sys
