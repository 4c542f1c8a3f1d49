// A Python that has imported torch and runs scripts in forks of itself, once a test program: a
// script costs milliseconds and not the seconds of that import (warm_python.py).
#pragma once

#include <filesystem>
#include <optional>

namespace lockstep::test {

// A program that runs [-W ACTION] FILE ... and [-W ACTION] -c SCRIPT ... as python() does, with the
// caller's environment, folder and open files; nothing where there is no Python. The first call
// starts what it asks, which ends with this process.
[[nodiscard]] std::optional<std::filesystem::path> warm_python();

}  // namespace lockstep::test
