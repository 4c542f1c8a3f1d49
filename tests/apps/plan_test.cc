// `lockstep plan pipeline`: its output and its files.
#include "apps/command.h"

#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

using Words = std::vector<std::string>;

Finished plan(Words words) {
  words.insert(words.begin(), {"plan", "pipeline"});
  return lockstep_command(words);
}

std::string content_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(PlanPipeline, DrawsAScheduleWithItsBubbleAndItsMemory) {
  const Finished end = plan({"--schedule", "1f1b", "--stages", "2", "--micro-batches", "3"});
  EXPECT_EQ(end.status.code, 0) << end.error;
  EXPECT_EQ(end.error, "");
  EXPECT_EQ(end.output,
            "1f1b: 2 stages on 2 ranks, 3 micro-batches\n"
            "times: F 1, B 2, I 1, W 1, communication 0\n"
            "\n"
            "rank 0 F0 F1 .  .  B0 -  F2 B1 -  .  B2 -\n"
            "rank 1 .  F0 B0 -  F1 B1 -  F2 B2 -  .  .\n"
            "\n"
            "  rank      begins        ends        busy       waits  peak activations\n"
            "     0           0          12           9           3                 2\n"
            "     1           1          10           9           0                 1\n"
            "\n"
            "bubble 25.0 % of the time of rank 0, from its first action to its last; a step takes "
            "12\n"
            "peak activations 2: forwards of one stage whose backward is still to come\n");
}

TEST(PlanPipeline, TheDocumentShowsWhatIsPrinted) {
  const std::string document = content_of(LOCKSTEP_SOURCE_DIR "/docs/pipelines.md");
  const std::string command =
      "lockstep plan pipeline --schedule zb-h1 --stages 3 --micro-batches 4";
  const Finished end = plan({"--schedule", "zb-h1", "--stages", "3", "--micro-batches", "4"});
  EXPECT_NE(document.find("$ " + command + "\n" + end.output + "```"), std::string::npos)
      << end.output;
}

TEST(PlanPipeline, TimesAreTheOnesAskedFor) {
  const Finished end = plan(
      {"--schedule", "zbv", "--stages", "4", "--micro-batches", "4", "--times", "1,2,1,1,0.5"});
  EXPECT_EQ(end.status.code, 0) << end.error;
  EXPECT_NE(end.output.find("times: F 1, B 2, I 1, W 1, communication 0.5\n"), std::string::npos);
  EXPECT_EQ(end.output.find("bubble 0.0 %"), std::string::npos) << end.output;
}

TEST(PlanPipeline, AFileThatItWroteIsReadBackAsTheSame) {
  const test::TemporaryFolder folder;
  const std::string csv = folder / "a.csv", svg = folder / "a.svg", again = folder / "b.csv";
  const Finished first = plan(
      {"--schedule", "zbv", "--stages", "4", "--micro-batches", "3", "--csv", csv, "--svg", svg});
  EXPECT_EQ(first.status.code, 0) << first.error;
  EXPECT_TRUE(content_of(svg).starts_with("<svg ")) << content_of(svg);
  const Finished second = plan({"--schedule", csv, "--csv", again});
  EXPECT_EQ(second.status.code, 0) << second.error;
  EXPECT_EQ(content_of(csv), content_of(again));
  EXPECT_EQ(second.output.substr(second.output.find('\n')),
            first.output.substr(first.output.find('\n')));
}

TEST(PlanPipeline, AFileThatCannotBeMeantIsOneLineAndNothingIsWritten) {
  const test::TemporaryFolder folder;
  const std::string csv = folder / "a.csv", svg = folder / "a.svg";
  const auto refused = [&](const std::string& text, const std::string& said) {
    std::ofstream(csv) << text;
    const Finished end = plan({"--schedule", csv, "--svg", svg});
    EXPECT_EQ(end.status.code, 1);
    EXPECT_EQ(end.output, "");
    EXPECT_EQ(end.error, "lockstep plan pipeline: " + csv + said + "\n");
    EXPECT_FALSE(std::filesystem::exists(svg));
  };
  refused("0F0,0B0\n1F0,1Q0\n",
          ":2: expected an action such as 3F12 (stage, F, B, I or W, micro-batch), found '1Q0'");
  refused("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n", ":2: 1B1: expected 1F1, which it needs, found none");
  refused("0F0,0B0,0B0\n", ":1: 0B0: expected it once, found it after 0B0, which does the same");
  const Finished absent = plan({"--schedule", folder / "none.csv"});
  EXPECT_EQ(absent.status.code, 1);
  EXPECT_NE(absent.error.find("none.csv: No such file"), std::string::npos) << absent.error;
}

TEST(PlanPipeline, AFileThatCannotBeWrittenIsOneLine) {
  const test::TemporaryFolder folder;
  const Finished end = plan({"--schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--svg",
                             folder / "no/such/a.svg"});
  EXPECT_EQ(end.status.code, 1);
  EXPECT_EQ(std::count(end.error.begin(), end.error.end(), '\n'), 1) << end.error;
}

}  // namespace
}  // namespace lockstep::apps
