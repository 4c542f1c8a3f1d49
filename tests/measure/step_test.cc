// lockstep-measure step: all modes give the same losses, and the output can be parsed.
#include "measure/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

namespace lockstep {
namespace {

using nlohmann::json;

class MeasureStep : public test::MeasureTest {};

constexpr std::int64_t width = 256, depth = 4;
constexpr std::int64_t parameters = depth * (width + 1) * width;

// The command itself compares the losses. Every mode has the bytes of its level, plus gathered
// units.
TEST_F(MeasureStep, EveryModeIsARowThatTrainsAlike) {
  const std::map<std::string, double> bytes{{"none", 16},      {"ddp", 16}, {"optimizer", 12},
                                            {"gradients", 10}, {"full", 8}, {"full-node-shared", 8},
                                            {"tensor", 8}};
  auto rows = rows_of("step --size 256x4 --rounds 1 --steps 1");
  EXPECT_EQ(rows.size(), 2 * bytes.size());
  std::map<std::string, int> seen;
  for (const json& row : rows) {
    std::string mode = row.at("mode");
    ++seen[mode];
    EXPECT_EQ(row.at("model"), "mlp");
    EXPECT_EQ(row.at("width"), width);
    EXPECT_EQ(row.at("depth"), depth);
    EXPECT_EQ(row.at("ranks"), 2);
    EXPECT_GT(row.at("min_s"), 0);
    EXPECT_GE(row.at("p50_s"), row.at("min_s"));
    for (const char* part : {"cpu_forward_s", "cpu_backward_s", "cpu_update_s"})
      EXPECT_GT(row.at(part), 0) << part;
    EXPECT_GE(row.at("bytes").get<double>(), bytes.at(mode) * parameters);
    // The mode "tensor" sums in another order.
    EXPECT_NEAR(row.at("losses").at(0), rows.front().at("losses").at(0), 1e-6);
  }
  for (const auto& [mode, times] : seen) EXPECT_EQ(times, 2) << mode;
}

TEST_F(MeasureStep, TheGptTrains) {
  auto rows = rows_of(
      "step --model gpt --size 96x2 --mode ddp,full --optimizer fused --rounds 1 --steps 1");
  ASSERT_EQ(rows.size(), 2);
  // The initial loss for 65 equally likely characters.
  EXPECT_NEAR(rows.front().at("losses").at(0), std::log(65), 0.1);
}

TEST_F(MeasureStep, TheTableNamesTheModes) {
  auto result = bench("step --size 64x2 --mode ddp,full --rounds 1 --steps 1");
  EXPECT_EQ(result.exit_code, 0);
  for (const char* words : {"model=mlp 64x2 ranks=2", "ddp", "full", "first losses"})
    EXPECT_NE(result.output.find(words), std::string::npos) << words << "\n" << result.output;
}

TEST_F(MeasureStep, WrongOptionsAreOneLineAndCode2) {
  const std::map<std::string, std::string> mistakes{
      {"", "name a command: step, memory, optimizer"},
      {"stpe", "unknown command 'stpe'; did you mean 'step'?"},
      {"step --model cnn", "--model: unknown value 'cnn'; known: mlp, gpt"},
      {"step --size 12", "--size: expected width x layers such as 4096x12, found '12'"},
      {"step --model gpt --mode ddp --size 100x2",
       "--size: expected a width that is a multiple of gpt's 6 heads, found 100"},
      {"memory --steps x", "--steps: expected an integer from 1 to 1000, found 'x'"},
      {"optimizer --states float8", "--states: unknown value 'float8'; did you mean 'float32'?"}};
  for (const auto& [words, said] : mistakes) {
    auto result = bench(words + " 2>&1");
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_TRUE(result.output.ends_with(": " + said + "\n")) << words << "\n" << result.output;
    EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << result.output;
  }
}

}  // namespace
}  // namespace lockstep
