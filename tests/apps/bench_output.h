// Runs `lockstep bench ... --json`, or another program with such rows, and reads its rows.
#pragma once

#include "apps/shell.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

class BenchTest : public ::testing::Test {
 protected:
  // `path` is the program.
  explicit BenchTest(std::string path = program("lockstep-bench")) : path_(std::move(path)) {}

  void SetUp() override {
    if (!std::filesystem::exists(path_)) GTEST_SKIP() << path_ << " was not built";
  }

  // `before` precedes the program on the command line: a launcher, or variables.
  ShellResult bench(const std::string& words, const std::string& before = "") const {
    return shell(before + path_ + " " + words);
  }

  std::vector<nlohmann::json> rows_of(const std::string& words,
                                      const std::string& before = "") const {
    auto result = bench(words + " --json", before);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::vector<nlohmann::json> rows;
    std::istringstream lines(result.output);
    for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
    return rows;
  }

 private:
  std::string path_;
};

}  // namespace lockstep::test
