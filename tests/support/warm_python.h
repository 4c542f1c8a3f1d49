// A Python process, one per test program, that has imported torch and runs scripts in forks of
// itself (warm_python.py): a script takes milliseconds instead of the seconds of the import.
#pragma once

#include <filesystem>
#include <optional>

namespace lockstep::test {

// Returns a program that runs [-W ACTION] FILE ... and [-W ACTION] -c SCRIPT ... like python(),
// with the caller's environment, folder and open files; std::nullopt if there is no Python. The
// first call starts the Python process, which ends with this process.
[[nodiscard]] std::optional<std::filesystem::path> warm_python();

}  // namespace lockstep::test
