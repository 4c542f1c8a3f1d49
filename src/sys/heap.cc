#include "sys/heap.h"

#include <malloc.h>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <initializer_list>

namespace lockstep::sys {
namespace {

std::atomic<void (*)()> other_allocator{nullptr};

bool user_has_chosen() {
  for (const char* name : {"GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

}  // namespace

void keep_freed_memory() {
  if (user_has_chosen()) return;
  constexpr int largest = 1 << 30;  // larger blocks are still mapped one by one
  constexpr int largest_in_old_glibc = 32 << 20;
  if (mallopt(M_MMAP_THRESHOLD, largest) == 0) mallopt(M_MMAP_THRESHOLD, largest_in_old_glibc);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

void return_freed_memory() {
  malloc_trim(0);
  if (auto* give_back = other_allocator.load(std::memory_order_acquire)) give_back();
}

void also_return_freed_memory(void (*give_back)()) {
  other_allocator.store(give_back, std::memory_order_release);
}

}  // namespace lockstep::sys
