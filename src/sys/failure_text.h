// Converts an exception to one line of text for users.
#pragma once

#include "sys/topology.h"

#include <exception>
#include <string>

namespace lockstep::sys {

// Returns what() for Lockstep's own errors; the first line of what() for other exceptions, because
// LibTorch appends a stack trace; the path and the reason for std::filesystem errors. If the
// standard library or LibTorch could not allocate memory, returns the requested size and the free
// memory.
[[nodiscard]] std::string failure_text(const std::exception& error);

// Returns a rounded size, such as "23.6 GiB" or "610 MiB".
[[nodiscard]] std::string rough_size(double bytes);
// Returns "18.7 GiB of 23.6 GiB of memory are free".
[[nodiscard]] std::string free_memory_text(const MemorySize& memory = memory_size());

}  // namespace lockstep::sys
