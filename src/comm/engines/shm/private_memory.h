// Other processes' private memory, by process_vm_readv and process_vm_writev (Linux 3.2): one copy
// by the kernel, without any help from the process it belongs to.
//
// The system may forbid it (Yama's ptrace_scope, a container's seccomp rules, another user), so
// ranks try it when they meet.
#pragma once

#include "comm/engines/shm/place.h"

#include <cstddef>

namespace lockstep::shm {

// Copies between memory here and a place in another process. 0, or the errno with which it failed;
// then any part of it may have been copied. ESRCH when that process has ended; what was read by
// then may be another's.
[[nodiscard]] int read_private(std::byte* to, Place from, std::size_t bytes);
[[nodiscard]] int write_private(Place to, const std::byte* from, std::size_t bytes);

// Whether the kernel would copy from and to this address of this process: not from what a device
// driver has mapped, such as memory that a GPU has pinned.
[[nodiscard]] bool is_plain_memory(const std::byte* data);

// Whether the kernel's copy costs less here than copying in and out of shared memory does: measured
// on this process's own memory, in less than a millisecond.
[[nodiscard]] bool private_copies_pay();

}  // namespace lockstep::shm
