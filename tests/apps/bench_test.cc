// lockstep-bench: both systems run, and what is printed can be read by a program.
#include "apps/shell.h"
#include "support/python.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>

namespace lockstep {
namespace {

using test::program;
using test::shell;

std::string field(const std::string& line, const std::string& name) {
  std::smatch found;
  return std::regex_search(line, found,
                           std::regex("\"" + name + "\":(\\[[^\\]]*\\]|\"[^\"]*\"|[^,}]*)"))
             ? found[1].str()
             : "";
}

TEST(BenchProgram, ComparesAStepWithPyTorchs) {
  if (!std::filesystem::exists(program("lockstep-bench")))
    GTEST_SKIP() << "lockstep-bench was not built";
  if (!test::python()) GTEST_SKIP() << test::no_python;
  auto result = shell(program("lockstep-bench") +
                      " step --model mlp --ranks 2 --pairs 1 --steps 1 --json --python " +
                      test::python()->string());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  ASSERT_EQ(test::count_lines(result.output), 2) << result.output;
  std::string ours = result.output.substr(0, result.output.find('\n'));
  std::string theirs = result.output.substr(ours.size() + 1);
  EXPECT_EQ(field(ours, "system"), "\"lockstep\"");
  EXPECT_EQ(field(theirs, "system"), "\"pytorch\"");
  for (const std::string& line : {ours, theirs}) {
    EXPECT_EQ(field(line, "model"), "\"mlp\"");
    EXPECT_EQ(field(line, "mode"), "\"ddp\"");
    EXPECT_EQ(field(line, "ranks"), "2");
    EXPECT_GT(std::stod(field(line, "min_s")), 0);
    EXPECT_GE(std::stod(field(line, "p50_s")), std::stod(field(line, "min_s")));
  }
  // The same weights and batches: the first losses differ by rounding only.
  double our_loss = std::stod(field(ours, "losses").substr(1));
  double their_loss = std::stod(field(theirs, "losses").substr(1));
  EXPECT_NEAR(our_loss, their_loss, 1e-4 * their_loss);
}

TEST(BenchProgram, MistakesAreRefused) {
  if (!std::filesystem::exists(program("lockstep-bench")))
    GTEST_SKIP() << "lockstep-bench was not built";
  EXPECT_NE(shell(program("lockstep-bench") + " step --model cnn 2>&1").exit_code, 0);
  auto result = shell(program("lockstep-bench") + " step --python /nowhere/python 2>&1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("/nowhere/python"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace lockstep
