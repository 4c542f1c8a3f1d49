// lockstep bench collectives: what it measures adds up, and what cannot be meant is refused.
#include "apps/shell.h"
#include "support/python.h"
#include "support/warm_python.h"

#include <lockstep/base/format.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using nlohmann::json;
using test::shell;

class BenchCollectives : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(test::program("lockstep-bench")))
      GTEST_SKIP() << "lockstep-bench was not built";
  }

  static test::ShellResult run(const std::string& words, const std::string& before = "") {
    return shell(before + test::program("lockstep-bench") + " collectives " + words);
  }

  static std::vector<json> objects_of(const std::string& output) {
    std::vector<json> objects;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) objects.push_back(json::parse(line));
    return objects;
  }
};

const std::string short_turns = " --rounds 2 --turn 0.001 ";

bool is_installed(const std::string& program) {
  return shell("command -v " + program).exit_code == 0;
}

// The ranks themselves compare the result of each operation with the one that is known.
TEST_F(BenchCollectives, EveryOperationIsAnObjectForEachKindOfMemory) {
  auto result =
      run("--peers none --json --ranks 3 --sizes 1,4KiB "
          "--op all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,reduce,gather,scatter,"
          "barrier" +
          short_turns);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  std::set<std::pair<std::string, std::string>> seen;
  auto objects = objects_of(result.output);
  for (const json& object : objects) {
    EXPECT_EQ(object.at("backend"), "shm");
    EXPECT_EQ(object.at("ranks"), 3);
    EXPECT_EQ(object.at("bytes").get<int>() % (3 * sizeof(float)), 0) << object;
    EXPECT_GT(object.at("min_s").get<double>(), 0) << object;
    EXPECT_GE(object.at("p50_s"), object.at("min_s"));
    EXPECT_GE(object.at("p99_s"), object.at("p50_s"));
    EXPECT_GE(object.at("calls"), 4);
    EXPECT_GT(object.at("memory_bytes_per_s").get<double>(), 1e8);
    seen.emplace(object.at("op"), object.at("memory"));
  }
  // Only an all_gather can lie in node-shared memory; a barrier has neither tensors nor sizes.
  EXPECT_EQ(seen.size(), 8 * 2 + 1 + 1);
  EXPECT_EQ(objects.size(), 2 * (8 * 2 + 1) + 1);
}

TEST_F(BenchCollectives, GlooStandsBesideUs) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  auto result = run("--peers gloo --op all_reduce,all_to_all --sizes 1KiB --python " +
                    test::warm_python()->string() + short_turns);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* words : {"core to core", "all_reduce 1 KiB, 2 ranks", "arena", "ordinary",
                            "all_reduce 1 KiB, 2 ranks, arena: gloo / ours"})
    EXPECT_NE(result.output.find(words), std::string::npos) << words << "\n" << result.output;
}

TEST_F(BenchCollectives, EveryMpiStandsBesideUs) {
  std::set<std::string> peers;
  for (const char* name : {"openmpi", "mpich"})
    if (is_installed(std::string("mpicc.") + name)) peers.insert(name);
  if (peers.empty()) GTEST_SKIP() << "no MPI is installed under Debian's names";
  auto result = run("--json --op all_reduce,broadcast --sizes 1KiB --peers " + listed(peers, ",") +
                    short_turns);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  std::set<std::string> seen;
  for (const json& object : objects_of(result.output)) seen.insert(object.at("backend"));
  peers.insert("shm");
  EXPECT_EQ(seen, peers);
}

TEST_F(BenchCollectives, AnMpiThatIsNotInstalledIsOneLineAndTheRestGoesOn) {
  auto result =
      run("--peers mpi,mpich --json --sizes 4KiB --outsider 2>&1" + short_turns, "PATH=/nowhere ");
  EXPECT_EQ(result.exit_code, 0);
  std::istringstream lines(result.output);
  std::string first, second, rest;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_EQ(first.rfind("left out: mpi: ", 0), 0) << result.output;
  EXPECT_NE(second.find("apt-get install mpich"), std::string::npos) << result.output;
  std::getline(lines, rest, '\0');
  auto objects = objects_of(rest);
  ASSERT_EQ(objects.size(), 4) << result.output;  // each row once more beside a busy process
  EXPECT_EQ(objects.front().at("outsider"), false);
  EXPECT_EQ(objects.back().at("outsider"), true);
}

TEST_F(BenchCollectives, WhatCannotBeMeantIsRefused) {
  for (auto [words, said] : std::vector<std::pair<std::string, std::string>>{
           {"--op allreduce", "did you mean 'all_reduce'"},
           {"--sizes 0", "found '0'"},
           {"--sizes 1KiB,-4", "found '-4'"},
           {"--sizes 64XB", "found '64XB'"},
           {"--sizes 4000TiB", "are free"},
           {"--ranks 0", "--ranks: expected a whole number from 1 to"},
           {"--ranks 2,100000", "found '100000'"},
           {"--peers glo", "did you mean 'gloo'"},
           {"--peers gloo --python /nowhere/python", "/nowhere/python"},
           {"--turn nan", "--turn"}}) {
    auto result = run(words + " 2>&1");
    EXPECT_NE(result.exit_code, 0) << words;
    EXPECT_NE(result.output.find(said), std::string::npos) << words << "\n" << result.output;
  }
}

TEST_F(BenchCollectives, ARankRefusesALineThatIsNone) {
  for (const char* line : {"rubbish", "all_reduce 8 arena 1 -2", "all_reduce 8 nowhere 1 1",
                           "all_reduce 8 arena 1 1 1"}) {
    auto result = shell("echo '" + std::string(line) + "' | " + test::program("lockstep-bench") +
                        " collectives-rank 2>&1");
    EXPECT_EQ(result.exit_code, 1) << line;
    EXPECT_NE(result.output.find("expected"), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace lockstep
