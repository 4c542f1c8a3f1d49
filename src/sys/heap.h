// How this process's malloc treats large blocks.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

namespace lockstep::sys {

// What keep_freed_memory() sets, and the environment variable that sets it in any program.
struct MallocSetting {
  const char* variable;
  int value;
};
inline constexpr MallocSetting map_blocks_from{"MALLOC_MMAP_THRESHOLD_", 1 << 30};
inline constexpr MallocSetting trim_from{"MALLOC_TRIM_THRESHOLD_", (1U << 31) - 1};
inline constexpr std::array malloc_settings{map_blocks_from, trim_from};

// Freed blocks stay with the process. glibc otherwise gives blocks of many megabytes back to the
// system, and a training step that frees and allocates the same gradients and activations pays for
// fresh pages each time: a third of the step for a model of wide linear layers. A user's own
// MALLOC_* or GLIBC_TUNABLES setting is left alone. Any thread; what was allocated before is not
// touched.
void keep_freed_memory();

// The bytes of freed memory that the user lets an allocator keep (MALLOC_TRIM_THRESHOLD_); none
// where the variable is not set or is no number. Any thread, while no thread changes the
// environment.
[[nodiscard]] std::optional<std::size_t> users_limit_of_freed_memory();

// Gives what is free now back to the system, once: where much has been freed that will not be
// wanted again. Any thread; milliseconds a gigabyte.
void return_freed_memory();

// From now on return_freed_memory() calls this, too: for another allocator that keeps what was
// freed. One a process.
void also_return_freed_memory(void (*give_back)());

}  // namespace lockstep::sys
