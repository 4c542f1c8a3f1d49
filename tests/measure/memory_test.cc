// lockstep-measure memory: counters agree with the formulas, and resident memory is measured.
#include "measure/measure.h"
#include "measure/resident.h"

#include <lockstep/base/error.h>

#include <set>
#include <string>
#include <vector>

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
    for (const char* deferred : {"", " --deferred"}) {
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

TEST(Resident, ReadsWhatLinuxPrints) {
  const std::string text =
      "560000000000-7ffd00000000 ---p 00000000 00:00 0                 [rollup]\n"
      "Rss:                9000 kB\n"
      "Pss:                5000 kB\n"
      "Pss_Dirty:          4100 kB\n"
      "Pss_Anon:           3000 kB\n"
      "Pss_File:           1500 kB\n"
      "Pss_Shmem:           500 kB\n";
  bench::Resident found = bench::parse_resident(text);
  EXPECT_EQ(found.pss, 5000 * 1024);
  EXPECT_EQ(found.anonymous, 3000 * 1024);
  EXPECT_EQ(found.files, 1500 * 1024);
  EXPECT_EQ(found.shared, 500 * 1024);
  EXPECT_THROW((void)bench::parse_resident("Rss: 1 kB\n"), BadInput);
  EXPECT_THROW((void)bench::parse_resident(text.substr(0, text.size() - 20)), BadInput);
}

TEST(Resident, SeesMemoryThatIsTouched) {
  bench::Resident before = bench::resident_now();
  std::vector<char> touched(32 << 20, 1);
  EXPECT_GT(bench::resident_now().pss - before.pss, 31 << 20);
  EXPECT_EQ(touched.back(), 1);
}

}  // namespace
}  // namespace lockstep
