// The threads of this process, as listed by the kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::test {

// Returns the names of all threads, except the calling one, that can receive a signal meant for the
// program, each with the signals that it does not block.
[[nodiscard]] std::vector<std::string> threads_that_take_signals();
// Returns the number of threads besides the calling one.
[[nodiscard]] std::size_t other_threads();

}  // namespace lockstep::test
