// Python with torch as a reference: LOCKSTEP_PYTHON (empty: none), otherwise .venv/bin/python of
// the source tree. If there is no Python, a test is skipped:
//
//   if (!test::python()) GTEST_SKIP() << test::no_python;
//   auto result = test::run_python(
//       "import sys, torch; print(torch.arange(int(sys.argv[1])).sum().item())", {"5"});
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

inline constexpr std::string_view no_python = "no Python with torch: set LOCKSTEP_PYTHON";

[[nodiscard]] std::optional<std::filesystem::path> python();

// Returns the Python of a virtual environment; std::nullopt if it has no torch.
[[nodiscard]] std::optional<std::filesystem::path> python_of(
    const std::filesystem::path& environment);

struct PythonResult {
  int exit_code = -1;
  std::string output;  // standard output; standard error goes to that of the test
};

// Runs a script with arguments and waits until it ends. Throws if there is no Python.
[[nodiscard]] PythonResult run_python(const std::string& script,
                                      const std::vector<std::string>& arguments = {});

}  // namespace lockstep::test
