// Python with torch as an oracle: LOCKSTEP_PYTHON, else .venv/bin/python of the source tree. A test
// without one skips:
//
//   if (!test::python()) GTEST_SKIP() << test::no_python;
//   auto result = test::run_python("import sys, torch;
//   print(torch.arange(int(sys.argv[1])).sum().item())", {"5"});
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

inline constexpr std::string_view no_python = "no Python with torch: set LOCKSTEP_PYTHON";

[[nodiscard]] std::optional<std::filesystem::path> python();

struct PythonResult {
  int exit_code = -1;
  std::string output;  // what it printed; its error output goes to the test's own
};

// Runs a script with arguments and waits for its end. Throws when there is no Python.
[[nodiscard]] PythonResult run_python(const std::string& script,
                                      const std::vector<std::string>& arguments = {});

}  // namespace lockstep::test
