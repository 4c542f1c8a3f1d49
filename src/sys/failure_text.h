// What an exception says, for a person who reads one line of it.
#pragma once

#include "sys/topology.h"

#include <exception>
#include <string>

namespace lockstep::sys {

// what() of Lockstep's own errors; of others the first line, because LibTorch's end with a stack
// trace; of the standard library's file system the path and the reason. Memory that could not be
// allocated, by the standard library or by LibTorch, is said in bytes beside those that are there.
[[nodiscard]] std::string failure_text(const std::exception& error);

// "25.3 GB", "640 MB": at a glance, to three digits at most.
[[nodiscard]] std::string rough_size(double bytes);
// "20.1 GB of 25.3 GB of memory are free".
[[nodiscard]] std::string free_memory_text(const MemorySize& memory = memory_size());

}  // namespace lockstep::sys
