// Large blocks of memory: how malloc handles them, and pages that bypass malloc.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

namespace lockstep::sys {

// A setting of keep_freed_memory(), and the environment variable that sets it in any program.
struct MallocSetting {
  const char* variable;
  int value;
};
inline constexpr MallocSetting map_blocks_from{"MALLOC_MMAP_THRESHOLD_", 1 << 30};
inline constexpr MallocSetting trim_from{"MALLOC_TRIM_THRESHOLD_", (1U << 31) - 1};
inline constexpr std::array malloc_settings{map_blocks_from, trim_from};

// Makes malloc keep freed blocks. By default glibc returns blocks of many megabytes to the system,
// and a training step that frees and allocates the same gradients and activations pays for new
// pages each time: a third of the step for a model of wide linear layers. Does nothing if the user
// has set MALLOC_* or GLIBC_TUNABLES. Thread-safe; does not affect earlier allocations.
void keep_freed_memory();

// Returns the number of bytes of freed memory that the user lets an allocator keep
// (MALLOC_TRIM_THRESHOLD_), or std::nullopt if the variable is unset or invalid. Thread-safe
// as long as no thread changes the environment.
[[nodiscard]] std::optional<std::size_t> users_limit_of_freed_memory();

// Returns the currently free memory to the system once; call it after freeing much memory that will
// not be needed again. Thread-safe; takes milliseconds per gigabyte.
void return_freed_memory();

// Makes later calls of return_freed_memory() call `give_back` too, for another allocator that keeps
// freed memory. One per process.
void also_return_freed_memory(void (*give_back)());

// Allocates zeroed pages, for large short-lived blocks. malloc would keep them after they are
// freed, and small blocks between them would fragment them. `bytes` must not be 0. Throws
// SystemError if there is no memory.
//
// Huge pages, if the system supports them, are for memory that is written from end to end: one page
// fault replaces 512, and a TLB entry covers more.
enum class PageSize { usual, huge };
[[nodiscard]] std::shared_ptr<void> private_pages(std::size_t bytes,
                                                  PageSize size = PageSize::usual);

// True if this build has a sanitizer that replaces malloc: it only checks blocks from malloc.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool malloc_is_watched = true;
#elif defined(__has_feature)
inline constexpr bool malloc_is_watched =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool malloc_is_watched = false;
#endif

}  // namespace lockstep::sys
