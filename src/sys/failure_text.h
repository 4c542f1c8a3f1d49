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

// Returns a size with at most three digits, such as "25.3 GB" or "640 MB".
[[nodiscard]] std::string rough_size(double bytes);
// Returns "20.1 GB of 25.3 GB of memory are free".
[[nodiscard]] std::string free_memory_text(const MemorySize& memory = memory_size());

}  // namespace lockstep::sys
