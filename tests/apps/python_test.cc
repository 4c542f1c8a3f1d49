// Tests find a Python with torch where there is one, and only there.
#include "support/python.h"
#include "base/scope_exit.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace lockstep::test {
namespace {

TEST(PythonWithTorch, AnEmptyVariableMeansNone) {
  const char* before = std::getenv("LOCKSTEP_PYTHON");
  const std::optional<std::string> named =
      before == nullptr ? std::nullopt : std::optional<std::string>(before);
  const ScopeExit restore([&] {
    if (named)
      ::setenv("LOCKSTEP_PYTHON", named->c_str(), 1);
    else
      ::unsetenv("LOCKSTEP_PYTHON");
  });
  ::setenv("LOCKSTEP_PYTHON", "", 1);
  EXPECT_FALSE(python().has_value());
  ::setenv("LOCKSTEP_PYTHON", "/a b/python", 1);
  EXPECT_EQ(python().value_or("").string(), "/a b/python");
}

TEST(PythonWithTorch, AnEnvironmentWithoutTorchDoesNotCount) {
  const TemporaryFolder folder;
  EXPECT_FALSE(python_of(folder.path()).has_value());
  const std::filesystem::path torch = folder / "lib/python3.11/site-packages/torch";
  std::filesystem::create_directories(torch);
  std::filesystem::create_directories(folder / "bin");
  std::ofstream(folder / "bin/python") << "#!/bin/sh\n";
  EXPECT_FALSE(python_of(folder.path()).has_value());
  std::ofstream(torch / "version.py") << "\n";
  EXPECT_EQ(python_of(folder.path()).value_or("").string(), (folder / "bin/python").string());
}

}  // namespace
}  // namespace lockstep::test
