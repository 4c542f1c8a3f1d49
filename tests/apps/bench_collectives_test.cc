// lockstep bench collectives: the measurements are consistent.
#include "apps/bench_output.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using nlohmann::json;

class BenchCollectives : public test::BenchTest {};

const std::string brief = " --rounds 2 --turn 0.001 ";
const std::string every_op =
    " --op all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,reduce,gather,scatter,barrier";

// The ranks themselves compare the result of each operation with the expected one.
TEST_F(BenchCollectives, EveryOperationIsARowForEachSizeAndKindOfMemory) {
  auto rows = rows_of("collectives --ranks 3 --from 1 --to 4KiB --factor 4096" + every_op + brief);
  std::set<std::pair<std::string, std::string>> seen;
  for (const json& row : rows) {
    EXPECT_EQ(row.at("backend"), "shm");
    EXPECT_EQ(row.at("ranks"), 3);
    EXPECT_EQ(row.at("bytes").get<int>() % (3 * sizeof(float)), 0) << row;
    EXPECT_GT(row.at("min_s").get<double>(), 0) << row;
    EXPECT_GE(row.at("p50_s"), row.at("min_s"));
    EXPECT_GE(row.at("max_s"), row.at("p50_s"));
    EXPECT_GE(row.at("calls"), 4);
    EXPECT_EQ(row.at("p99_s").is_null(), row.at("calls") < 200) << row;
    EXPECT_DOUBLE_EQ(row.at("algorithm_bytes_per_s"),
                     row.at("bytes").get<double>() / row.at("p50_s").get<double>());
    seen.emplace(row.at("op"), row.at("memory"));
  }
  // Only an all_gather can use node-shared memory; a barrier has neither tensors nor sizes.
  EXPECT_EQ(seen.size(), 8 * 2 + 1 + 1);
  EXPECT_EQ(rows.size(), 2 * (8 * 2 + 1) + 1);
}

TEST_F(BenchCollectives, SizesGoFromOneToAnotherByAFactor) {
  std::vector<int> sizes;
  for (const json& row :
       rows_of("collectives --from 1KiB --to 20000 --factor 4 --memory arena" + brief))
    sizes.push_back(row.at("bytes"));
  EXPECT_EQ(sizes, (std::vector{1024, 4096, 16384}));
}

// This host has no GPU, so the default is the CPU.
TEST_F(BenchCollectives, TheCpuHasTensorsOfTheHost) {
  std::vector<std::set<std::string>> memories;
  for (const char* device : {"", " --device cpu"}) {
    auto& seen = memories.emplace_back();
    for (const json& row : rows_of("collectives --from 4KiB --to 4KiB" + brief + device))
      seen.insert(row.at("memory"));
  }
  EXPECT_EQ(memories[0], (std::set<std::string>{"arena", "ordinary"}));
  EXPECT_EQ(memories[1], memories[0]);
  auto result = bench("collectives --memory device --device cpu 2>&1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output,
            "lockstep bench collectives: --memory device: the backend shm has no such tensors on "
            "cpu\n");
}

TEST_F(BenchCollectives, BackendsTakeTurns) {
  auto help = bench("collectives --backend nothing 2>&1");
  if (help.output.find("gloo") == std::string::npos) GTEST_SKIP() << "Gloo is not in this build";
  std::multiset<std::pair<std::string, std::string>> seen;
  for (const json& row :
       rows_of("collectives --backend gloo,shm --from 4KiB --to 4KiB --op all_reduce,broadcast" +
               brief))
    seen.emplace(row.at("backend"), row.at("memory"));
  EXPECT_EQ(seen.size(), 2 * (1 + 2));
  EXPECT_EQ(seen.count({"gloo", "ordinary"}), 2);
  EXPECT_EQ(seen.count({"shm", "arena"}), 2);
}

TEST_F(BenchCollectives, RanksAreThoseOfALauncher) {
  auto rows = rows_of("collectives --from 4KiB --to 4KiB --memory ordinary" + brief,
                      test::program("lockstep") + " run --prefix none -n 3 ");
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows.front().at("ranks"), 3);
  EXPECT_EQ(rows_of("collectives --ranks 1 --from 4KiB --to 4KiB" + brief).front().at("ranks"), 1);
}

// A share above 1 would mean a wrong bound; this run is too short and too disturbed to check more.
TEST_F(BenchCollectives, ABoundStandsBesideLargeTensors) {
  for (const json& row :
       rows_of("collectives --from 32MiB --to 32MiB --memory arena --rounds 2 --turn 0.01")) {
    ASSERT_FALSE(row.at("bound_s").is_null());
    EXPECT_GT(row.at("bound_s"), 0);
    EXPECT_LT(row.at("bound_s"), row.at("max_s"));
  }
}

TEST_F(BenchCollectives, TheTableHasTheColumnsOfTheRows) {
  auto result = bench("collectives --from 4KiB --to 4KiB" + brief);
  EXPECT_EQ(result.exit_code, 0);
  for (const char* words :
       {"core to core", "alg GB/s", "bus GB/s", "of bound", "arena", "ordinary"})
    EXPECT_NE(result.output.find(words), std::string::npos) << words << "\n" << result.output;
}

TEST_F(BenchCollectives, WhatDoesNotFitIsRefused) {
  auto result = bench("collectives --from 4000TiB --to 4000TiB 2>&1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("are free"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace lockstep
