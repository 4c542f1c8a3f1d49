#include "sys/heap.h"
#include "sys/process_info.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <lockstep/base/error.h>

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

constexpr std::size_t large = std::size_t{64} << 20;

TEST(PrivatePages, GoBackToTheSystemWithTheirLastOwner) {
  keep_freed_memory();
  auto before = proportional_bytes();
  auto pages = private_pages(large);
  auto second_owner = pages;
  EXPECT_EQ(static_cast<const char*>(pages.get())[large - 1], 0);
  std::memset(pages.get(), 1, large);
  pages.reset();
  EXPECT_GT(proportional_bytes(), before + static_cast<std::int64_t>(large / 2));
  second_owner.reset();
  EXPECT_LT(proportional_bytes(), before + static_cast<std::int64_t>(large / 2));
}

TEST(PrivatePages, TooManyAreAnErrorThatSaysHowMany) {
  try {
    (void)private_pages(std::size_t{1} << 60);
    FAIL() << "expected an error";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(std::size_t{1} << 60)),
              std::string::npos)
        << error.what();
  }
}

}  // namespace

}  // namespace lockstep::sys
