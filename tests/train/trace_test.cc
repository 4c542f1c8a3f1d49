// --trace: a Chrome trace of some steps of each rank.
#include "train/metrics.h"

#include "support/temporary_folder.h"
#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

struct Span {
  double begin = 0, end = 0;
  [[nodiscard]] bool holds(const Span& other) const {
    return begin <= other.begin && other.end <= end;
  }
};

// The complete events of a file, by name.
std::map<std::string, std::vector<Span>> spans_of(const std::filesystem::path& file) {
  std::map<std::string, std::vector<Span>> spans;
  std::ifstream text(file);
  const nlohmann::json json = nlohmann::json::parse(text);
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.value("ph", "") != "X") continue;
    const auto begin = event.at("ts").get<double>();
    spans[event.at("name").get<std::string>()].push_back(
        {begin, begin + event.at("dur").get<double>()});
  }
  return spans;
}

TEST(TraceFile, OfSeveralRanksIsNamedAfterThem) {
  EXPECT_EQ(trace_file("a/trace.json", 0, 1), "a/trace.json");
  EXPECT_EQ(trace_file("a/trace.json", 1, 2), "a/trace.rank1.json");
  EXPECT_EQ(trace_file("trace", 1, 2), "trace.rank1");
}

class TracedRanks : public testing::TestWithParam<int> {};

TEST_P(TracedRanks, ShowWhereAStepsTimeGoes) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  options.trace = folder / "trace.json";
  options.trace_steps = 3;
  const int ranks = GetParam();
  run(ranks, options);
  for (int rank = 0; rank < ranks; ++rank) {
    auto spans = spans_of(trace_file(options.trace, rank, ranks));
    for (const char* name : {"data", "forward", "backward", "update"})
      EXPECT_EQ(spans[name].size(), 3u) << name << " of rank " << rank;
    EXPECT_GE(spans["communication"].size(), ranks > 1 ? 3u : 0u);
    EXPECT_GT(spans["aten::conv2d"].size(), 0u);
    for (std::size_t step = 0; step < 3 && step < spans["update"].size(); ++step) {
      EXPECT_LE(spans["data"][step].end, spans["forward"][step].begin);
      EXPECT_LE(spans["forward"][step].end, spans["backward"][step].begin);
      EXPECT_LE(spans["backward"][step].end, spans["update"][step].begin);
      EXPECT_TRUE(ranks == 1 || spans["backward"][step].holds(spans["communication"][step]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TracedRanks, testing::Values(1, 2, 3));

// It changes nothing of what is trained, and a run that ends before has what there was.
TEST(Trace, OfAShortRunIsWrittenAtItsEnd) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  run(2, options);
  RunSetup traced = options;
  traced.out += "-traced";
  traced.trace = folder / "trace.json";
  traced.trace_steps = 1000;
  traced.local_sgd.period = 0;
  run(2, traced);
  EXPECT_EQ(distance(options.out, traced.out), 0);
  EXPECT_EQ(spans_of(folder / "trace.rank1.json")["forward"].size(), 6u);
}

TEST(Trace, OfOtherStrategiesShowsTheirCommunication) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.trace = folder / "trace.json";
  options.trace_steps = 4;
  options.diloco.inner_steps = 2;
  run(2, options);
  EXPECT_EQ(spans_of(folder / "trace.rank0.json")["update"].size(), 4u);
  EXPECT_GE(spans_of(folder / "trace.rank0.json")["communication"].size(), 4u);
  options.diloco.inner_steps = 0;
  options.out += "-ps";
  options.strategy = StrategyKind::ps;
  options.workers = 2;
  run(3, options);
  EXPECT_EQ(spans_of(folder / "trace.rank1.json")["communication"].size(), 4u);
}

TEST(Trace, AFolderThatIsNotThereIsOneLineBefore) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.trace = folder / "none" / "trace.json";
  EXPECT_EQ(test::message_of([&] { check_run(options, 1); }),
            "--trace " + options.trace + ": expected a file in a folder that is there");
}

// What cannot be written is said on all ranks.
TEST(Trace, AFileThatCannotBeWrittenIsOneLine) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.trace = folder / "trace.json";
  std::filesystem::create_directories(folder / "trace.rank1.json" / "full");
  test::run_group(test::Engine::shm, 2, [&](Group group) {
    const std::string text = test::message_of([&] { (void)train(options, group); });
    EXPECT_NE(text.find("writing the trace"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace lockstep::train
