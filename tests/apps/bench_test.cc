// lockstep bench step: both systems run in every mode, and what is printed can be read by a program.
#include "apps/shell.h"
#include "support/python.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using nlohmann::json;
using test::program;
using test::shell;

class BenchStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program("lockstep-bench")))
      GTEST_SKIP() << "lockstep-bench was not built";
  }

  static test::ShellResult run(const std::string& words) {
    std::string python = test::python() ? " --python " + test::python()->string() : "";
    return shell(program("lockstep-bench") + " step " + words + python);
  }

  static std::vector<json> objects_of(const std::string& output) {
    std::vector<json> objects;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) objects.push_back(json::parse(line));
    return objects;
  }
};

const std::string brief = " --ranks 2 --rounds 1 --steps 1 --optimizer fused --json ";
constexpr std::int64_t mlp_parameters = 4 * 2049 * 2048;

// Weights and batches are the same everywhere, so the first losses of all that train together
// differ by rounding only; and every mode holds what its level says.
TEST_F(BenchStep, EveryModeOfBothSystemsIsAnObject) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  auto result =
      run("--mode ddp,optimizer,gradients,full,full-node-shared --against ddp,zero1,fsdp2" + brief);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const std::map<std::pair<std::string, std::string>, double> least_bytes{
      {{"lockstep", "ddp"}, 16}, {{"lockstep", "optimizer"}, 12},
      {{"lockstep", "full"}, 8}, {{"lockstep", "gradients"}, 10},
      {{"pytorch", "ddp"}, 16},  {{"pytorch", "zero1"}, 12},
      {{"pytorch", "fsdp2"}, 8}, {{"lockstep", "full-node-shared"}, 8}};
  auto objects = objects_of(result.output);
  ASSERT_EQ(objects.size(), least_bytes.size()) << result.output;
  double loss = objects.front().at("losses").at(1);
  for (const json& object : objects) {
    auto expected = least_bytes.find({object.at("system"), object.at("mode")});
    ASSERT_NE(expected, least_bytes.end()) << object;
    EXPECT_EQ(object.at("model"), "mlp");
    EXPECT_EQ(object.at("ranks"), 2);
    EXPECT_EQ(object.at("optimizer"), "fused");
    EXPECT_GT(object.at("min_s"), 0);
    EXPECT_GE(object.at("p50_s"), object.at("min_s"));
    EXPECT_GE(object.at("bytes").get<double>(), expected->second * mlp_parameters) << object;
    EXPECT_NEAR(object.at("losses").at(1), loss, 1e-4 * loss) << object;
  }
}

TEST_F(BenchStep, TheTailMovesTheBytesOfOnePass) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  auto result = run("--measure tail" + brief);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  auto objects = objects_of(result.output);
  ASSERT_EQ(objects.size(), 2U) << result.output;
  const json& ours = objects.front();
  EXPECT_EQ(ours.at("system"), "lockstep");
  EXPECT_EQ(ours.at("mode"), "tail");
  // 4p + 24 a parameter, half of the parameters on each of two ranks.
  EXPECT_EQ(ours.at("bytes").get<std::int64_t>(),
            (4 * 2 + 24) * ours.at("parameters").get<std::int64_t>() / 2);
  EXPECT_EQ(objects.back().at("system"), "pytorch");
}

TEST_F(BenchStep, TheTriggerIsCountedAndTimed) {
  auto result = run("--measure trigger" + brief);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  auto objects = objects_of(result.output);
  ASSERT_EQ(objects.size(), 1U) << result.output;
  EXPECT_EQ(objects.front().at("model"), "gpt");
  // Six blocks of four linear layers and two norms, forward and backward.
  EXPECT_GT(objects.front().at("uses"), 6 * (4 + 2) * 2);
  EXPECT_GT(objects.front().at("views"), 6 * 4);
  EXPECT_GT(objects.front().at("share"), 0);
}

TEST_F(BenchStep, MistakesAreRefused) {
  EXPECT_NE(shell(program("lockstep-bench") + " step --model cnn 2>&1").exit_code, 0);
  EXPECT_NE(shell(program("lockstep-bench") + " step --mode zero1 2>&1").exit_code, 0);
  EXPECT_NE(shell(program("lockstep-bench") + " step --against full 2>&1").exit_code, 0);
  auto result = shell(program("lockstep-bench") + " step --python /nowhere/python 2>&1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("/nowhere/python"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace lockstep
