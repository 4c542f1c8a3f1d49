// Warns of OpenMP threads that occupy the cores of a busy host while they wait.
#pragma once

#include <string>

namespace lockstep {

// Returns the text of a warning; empty if idle threads sleep soon, if there is one thread, or if
// the host has cores to spare. `load` is its load average.
[[nodiscard]] std::string problem_of_waiting_threads(int threads, int cores, double load);

// Logs the warning once per process. LibTorch has read the environment by then, so changing it has
// no effect.
void warn_of_waiting_threads();

}  // namespace lockstep
