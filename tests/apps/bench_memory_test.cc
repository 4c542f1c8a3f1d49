// lockstep bench memory: counters agree with the formulas, pages are measured, limits hold.
#include "apps/shell.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using nlohmann::json;
using test::program;
using test::shell;

class BenchMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program("lockstep-bench")))
      GTEST_SKIP() << "lockstep-bench was not built";
  }

  static std::vector<json> rows_of(const std::string& words) {
    auto result = shell(program("lockstep-bench") + " memory --json --steps 2 " + words);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::vector<json> rows;
    std::istringstream lines(result.output);
    for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
    return rows;
  }
};

// Widths that three ranks cannot divide evenly are padded; 256 x 4 pads by little.
TEST_F(BenchMemory, CountersAreThoseOfTheFormulas) {
  auto rows = rows_of("--measure counters --most-ranks 3 --counted 256x4");
  std::set<std::string> seen;
  for (const json& row : rows) {
    EXPECT_EQ(row.at("system"), "lockstep");
    EXPECT_EQ(row.at("row"), "counters");
    EXPECT_NEAR(row.at("ratio"), 1, 0.005) << row;
    seen.insert(row.at("mode").get<std::string>() + " " + row.at("dtype").get<std::string>() + " " +
                std::to_string(row.at("ranks").get<int>()));
  }
  EXPECT_EQ(seen.size(), 6U * 2 * 3);
}

// The processes are small here, so this says that what is measured is there, not how close it is.
TEST_F(BenchMemory, PagesAreMeasured) {
  auto rows = rows_of("--measure pss,node-shared --measured 512x8");
  ASSERT_EQ(rows.size(), 7U);
  for (const json& row : rows) {
    double expected = row.at("expected_bytes");
    EXPECT_GT(row.at("bytes").get<double>(), 0.8 * expected) << row;
    EXPECT_GT(row.at("p50_s"), 0) << row;
  }
}

TEST_F(BenchMemory, MistakesAreRefused) {
  auto result = shell(program("lockstep-bench") + " memory --measured 12 2>&1");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("4096x12"), std::string::npos) << result.output;
  EXPECT_NE(shell(program("lockstep-bench") + " memory --measure rss 2>&1").exit_code, 0);
}

}  // namespace
}  // namespace lockstep
