// lockstep-measure memory: counters agree with the formulas, and resident memory is measured.
#include "measure/measure.h"

#include <set>
#include <string>

namespace lockstep {
namespace {

using nlohmann::json;

class MeasureMemory : public test::MeasureTest {};

// Widths that three ranks cannot divide evenly are padded; 256 x 4 needs little padding.
TEST_F(MeasureMemory, CountersAreThoseOfTheFormulas) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    std::set<std::string> seen;
    for (const json& row :
         rows_of("memory --steps 2 --size 256x4 --ranks " + std::to_string(ranks))) {
      EXPECT_EQ(row.at("ranks"), ranks);
      EXPECT_NEAR(row.at("ratio"), 1, 0.005) << row;
      seen.insert(row.at("mode").get<std::string>() + " " + row.at("dtype").get<std::string>());
    }
    EXPECT_EQ(seen.size(), 6 * 2);
  }
}

// The processes are small here, so this test only checks that the measurement exists and is near
// the expected value.
TEST_F(MeasureMemory, PagesAreMeasured) {
  for (const char* mode : {"ddp", "optimizer", "gradients", "full"})
    for (const char* deferred : {"", " --deferred-init"}) {
      if (mode == std::string("ddp") && *deferred != '\0') continue;
      auto rows = rows_of(
          "memory --size 512x8 --steps 2 --dtype float32 --mode " + std::string(mode) + deferred,
          "MALLOC_TRIM_THRESHOLD_=131072 ");
      ASSERT_EQ(rows.size(), 1);
      const json& row = rows.front();
      double expected =
          row.at("expected_bytes").get<double>() + row.at("units_bytes").get<double>();
      EXPECT_GT(row.at("pss_bytes").get<double>(), 0.8 * expected) << row;
      EXPECT_LT(row.at("pss_bytes").get<double>(), 2 * expected) << row;
      EXPECT_LT(row.at("idle_pss_bytes_of_all").get<double>(),
                2 * row.at("pss_bytes").get<double>() + (1 << 20));
      EXPECT_GT(row.at("p50_s"), 0) << row;
    }
}

}  // namespace
}  // namespace lockstep
