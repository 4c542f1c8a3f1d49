// Runs `lockstep bench ... --json` and reads its rows.
#pragma once

#include "apps/shell.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::test {

class BenchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program("lockstep-bench")))
      GTEST_SKIP() << "lockstep-bench was not built";
  }

  // `before` precedes the program on the command line: a launcher, or variables.
  static ShellResult bench(const std::string& words, const std::string& before = "") {
    return shell(before + program("lockstep-bench") + " " + words);
  }

  static std::vector<nlohmann::json> rows_of(const std::string& words,
                                             const std::string& before = "") {
    auto result = bench(words + " --json", before);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::vector<nlohmann::json> rows;
    std::istringstream lines(result.output);
    for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
    return rows;
  }
};

}  // namespace lockstep::test
