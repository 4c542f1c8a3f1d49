// The threads of this process, as the kernel shows them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::test {

// Names of the threads, other than the calling one, to which a signal of the program's could be
// delivered; each with the signals that it does not block.
[[nodiscard]] std::vector<std::string> threads_that_take_signals();
// How many threads there are besides the calling one.
[[nodiscard]] std::size_t other_threads();

}  // namespace lockstep::test
