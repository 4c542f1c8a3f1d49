// Which cores a thread runs on.
#pragma once

#include <span>
#include <vector>

namespace lockstep::sys {

// Numbers of the cores that the calling thread may run on, in order.
[[nodiscard]] std::vector<int> allowed_cores();

// From now on the calling thread, and the threads that it starts, run on these cores only. Throws
// SystemError when the system refuses: when none of them is there.
void run_on_cores(std::span<const int> cores);

}  // namespace lockstep::sys
