// `lockstep bench optimizer`: every contender runs, and what is printed can be read by a program.
#include "apps/shell.h"
#include "support/python.h"
#include "support/warm_python.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>

namespace lockstep {
namespace {

using test::program;
using test::shell;

std::string text_field(const std::string& line, const std::string& name) {
  std::string key = "\"" + name + "\":\"";
  auto begin = line.find(key);
  if (begin == std::string::npos) return "";
  begin += key.size();
  return line.substr(begin, line.find('"', begin) - begin);
}

TEST(BenchOptimizer, ComparesItsContenders) {
  if (!std::filesystem::exists(program("lockstep-bench")))
    GTEST_SKIP() << "lockstep-bench was not built";
  if (!test::python()) GTEST_SKIP() << test::no_python;
  auto result =
      shell(program("lockstep-bench") +
            " optimizer --tensors 2 --elements 5000 --rounds 2 --steps 1 --json --python " +
            test::warm_python()->string());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  std::istringstream lines(result.output);
  std::set<std::string> kinds;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(text_field(line, "bench"), "optimizer") << line;
    EXPECT_NE(line.find("\"parameters\":10000,"), std::string::npos) << line;
    kinds.insert(text_field(line, "system") + " " + text_field(line, "kind"));
  }
  EXPECT_EQ(kinds,
            (std::set<std::string>{"pytorch default", "pytorch fused", "lockstep float32",
                                   "lockstep memory", "lockstep bfloat16", "lockstep blocks"}));
}

TEST(BenchOptimizer, RefusesUnknownStates) {
  if (!std::filesystem::exists(program("lockstep-bench")))
    GTEST_SKIP() << "lockstep-bench was not built";
  auto result = shell(program("lockstep-bench") + " optimizer --states float8 2>&1");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("float8"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace lockstep
