#include "sys/heap.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cstdlib>
#include <cstring>

namespace lockstep::sys {
namespace {

constexpr std::size_t bytes = 16 << 20;  // larger than what glibc keeps by itself

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool own_malloc = true;
#elif defined(__has_feature)
constexpr bool own_malloc = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool own_malloc = false;
#endif

// Pages that the kernel has to bring while a large block is allocated, filled and freed.
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
  if (own_malloc) GTEST_SKIP() << "a sanitizer brings its own malloc";
  keep_freed_memory();
  (void)faults_of_one_block();
  EXPECT_LT(faults_of_one_block(), 100);
}

}  // namespace
}  // namespace lockstep::sys
