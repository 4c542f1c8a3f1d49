// lockstep-measure optimizer: every state is measured and compared with the memory pass.
#include "measure/measure.h"

#include <set>
#include <string>

namespace lockstep {
namespace {

using nlohmann::json;

class MeasureOptimizer : public test::MeasureTest {};

TEST_F(MeasureOptimizer, EveryStateIsARowBesideTheMemoryPass) {
  std::set<std::string> kinds;
  for (const json& row : rows_of("optimizer --tensors 2 --elements 5000 --rounds 2 --steps 1")) {
    EXPECT_EQ(row.at("bench"), "optimizer");
    EXPECT_EQ(row.at("parameters"), 10000);
    EXPECT_GT(row.at("share_of_memory_bound").at("p50"), 0);
    kinds.insert(row.at("kind"));
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"float32", "memory", "bfloat16", "blocks"}));
}

}  // namespace
}  // namespace lockstep
