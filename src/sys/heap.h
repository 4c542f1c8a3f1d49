// Configures how malloc in this process handles large blocks.
#pragma once

#include <array>
#include <cstddef>
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

}  // namespace lockstep::sys
