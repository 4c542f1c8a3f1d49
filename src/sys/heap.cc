#include "sys/heap.h"

#include <malloc.h>
#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

std::atomic<void (*)()> other_allocator{nullptr};

bool user_has_chosen() {
  return std::getenv("GLIBC_TUNABLES") != nullptr ||
         std::ranges::any_of(malloc_settings, [](const MallocSetting& setting) {
           return std::getenv(setting.variable) != nullptr;
         });
}

}  // namespace

void keep_freed_memory() {
  if (malloc_is_watched || user_has_chosen()) return;
  constexpr int largest_in_old_glibc = 32 << 20;
  if (mallopt(M_MMAP_THRESHOLD, map_blocks_from.value) == 0)
    mallopt(M_MMAP_THRESHOLD, largest_in_old_glibc);
  mallopt(M_TRIM_THRESHOLD, trim_from.value);
}

std::optional<std::size_t> users_limit_of_freed_memory() {
  const char* set = std::getenv(trim_from.variable);
  if (set == nullptr) return std::nullopt;
  std::string_view text(set);
  std::size_t bytes = 0;
  auto [end, error] = std::from_chars(text.begin(), text.end(), bytes);
  if (error != std::errc() || end != text.end()) return std::nullopt;
  return bytes;
}

void return_freed_memory() {
  // With a sanitizer's malloc, glibc's own malloc was never initialised; malloc_trim() would crash.
  if constexpr (!malloc_is_watched) malloc_trim(0);
  if (auto* give_back = other_allocator.load(std::memory_order_acquire)) give_back();
}

void also_return_freed_memory(void (*give_back)()) {
  other_allocator.store(give_back, std::memory_order_release);
}

std::shared_ptr<void> private_pages(std::size_t bytes, PageSize size) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw SystemError("mapping " + std::to_string(bytes) + " bytes of memory", errno);
  if (size == PageSize::huge) (void)::madvise(memory, bytes, MADV_HUGEPAGE);  // only advice
  return {memory, [bytes](void* pages) { ::munmap(pages, bytes); }};
}

}  // namespace lockstep::sys
