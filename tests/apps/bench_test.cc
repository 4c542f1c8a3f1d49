// lockstep bench step: both systems run in every mode, and a program can read what is printed.
#include "apps/shell.h"
#include "support/python.h"
#include "support/warm_python.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
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
    std::string python = test::python() ? " --python " + test::warm_python()->string() : "";
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
constexpr std::int64_t mlp_width = 256, mlp_depth = 4;
constexpr std::int64_t mlp_parameters = mlp_depth * (mlp_width + 1) * mlp_width;

// Modes of ours and PyTorch's counterpart, with the bytes a parameter that two ranks hold.
struct Contest {
  std::string name;
  std::string against;
  std::map<std::string, double> bytes;
};

class BenchStepModes : public BenchStep, public ::testing::WithParamInterface<Contest> {};

// Weights and batches are the same everywhere, so the losses of all that train together differ by
// rounding only; and every mode holds what its level says, or units on top of it.
TEST_P(BenchStepModes, EachIsAnObjectThatTrainsAlike) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  std::string modes;
  for (const auto& [mode, bytes] : GetParam().bytes)
    if (mode != "zero1" && mode != "fsdp2") modes += (modes.empty() ? "" : ",") + mode;
  auto result =
      run("--mode " + modes + " --against " + GetParam().against + " --size 256x4" + brief);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  auto objects = objects_of(result.output);
  double loss = objects.front().at("losses").at(1);
  std::set<std::string> seen;
  for (const json& object : objects) {
    std::string mode = object.at("mode");
    seen.insert(object.at("system").get<std::string>() + " " + mode);
    EXPECT_EQ(object.at("model"), "mlp");
    EXPECT_EQ(object.at("width"), mlp_width);
    EXPECT_EQ(object.at("depth"), mlp_depth);
    EXPECT_EQ(object.at("ranks"), 2);
    EXPECT_EQ(object.at("optimizer"), "fused");
    EXPECT_GT(object.at("min_s"), 0);
    EXPECT_GE(object.at("p50_s"), object.at("min_s"));
    EXPECT_GE(object.at("bytes").get<double>(), GetParam().bytes.at(mode) * mlp_parameters);
    EXPECT_NEAR(object.at("losses").at(1), loss, 1e-4 * loss) << object;
  }
  EXPECT_EQ(seen.size(), objects.size());
  EXPECT_TRUE(seen.contains("pytorch " + GetParam().against)) << result.output;
}

INSTANTIATE_TEST_SUITE_P(
    , BenchStepModes,
    ::testing::Values(
        Contest{"ddp", "ddp", {{"ddp", 16}}},
        Contest{"zero1", "zero1", {{"optimizer", 12}, {"gradients", 10}, {"zero1", 12}}},
        Contest{"fsdp2", "fsdp2", {{"full", 8}, {"full-node-shared", 8}, {"fsdp2", 8}}}),
    [](const auto& info) { return info.param.name; });

TEST_F(BenchStep, TheTailMovesTheBytesOfOnePass) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  auto result = run("--measure tail --tensors 3 --elements 65536" + brief);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  auto objects = objects_of(result.output);
  ASSERT_EQ(objects.size(), 2U) << result.output;
  const json& ours = objects.front();
  EXPECT_EQ(ours.at("system"), "lockstep");
  EXPECT_EQ(ours.at("mode"), "tail");
  EXPECT_EQ(ours.at("parameters"), 3 * 65536);
  // 4p + 24 a parameter, half of the parameters on each of two ranks.
  EXPECT_EQ(ours.at("bytes").get<std::int64_t>(),
            (4 * 2 + 24) * ours.at("parameters").get<std::int64_t>() / 2);
  EXPECT_EQ(objects.back().at("system"), "pytorch");
}

TEST_F(BenchStep, TheTriggerIsCountedAndTimed) {
  auto result = run("--measure trigger --size 96x2" + brief);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  auto objects = objects_of(result.output);
  ASSERT_EQ(objects.size(), 1U) << result.output;
  EXPECT_EQ(objects.front().at("model"), "gpt");
  // Two blocks of four linear layers and two norms, forward and backward.
  EXPECT_GT(objects.front().at("uses"), 2 * (4 + 2) * 2);
  EXPECT_GT(objects.front().at("views"), 2 * 4);
  EXPECT_GT(objects.front().at("share"), 0);
}

TEST_F(BenchStep, MistakesAreRefused) {
  EXPECT_EQ(shell(program("lockstep-bench") + " step --against full 2>&1").exit_code, 2);
  auto result = shell(program("lockstep-bench") + " step --python /nowhere/python 2>&1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("/nowhere/python"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace lockstep
