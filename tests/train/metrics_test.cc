#include "train/metrics.h"

#include <lockstep/base/error.h>

#include "support/temporary_folder.h"
#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/record_function.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {
namespace {

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

MetricsRow metrics_at(std::int64_t step) { return {.step = step, .loss = 0.5}; }

TEST(Metrics, ALineIsOneObject) {
  EXPECT_EQ(
      metrics_line({.step = 250,
                    .epoch = 1,
                    .loss = 2.5,
                    .lr = 0.001,
                    .samples_per_second = 400,
                    .resident_bytes = 300,
                    .model_bytes = 200,
                    .exposed_seconds = 0.25,
                    .forward_seconds = 0.5,
                    .backward_seconds = 0.75,
                    .update_seconds = 0.125,
                    .seconds = 8}),
      R"({"step":250,"epoch":1,"loss":2.5,"lr":0.001,"samples_per_second":400.0,)"
      R"("resident_bytes":300,"model_bytes":200,"exposed_seconds":0.25,)"
      R"("forward_seconds":0.5,"backward_seconds":0.75,"update_seconds":0.125,"seconds":8.0})");
  EXPECT_EQ(metrics_line({.step = 1, .loss = std::nan(""), .val_loss = 0.25, .accuracy = 0.5}),
            R"({"step":1,"epoch":0,"loss":null,"val_loss":0.25,"accuracy":0.5,"lr":0.0,)"
            R"("samples_per_second":0.0,"resident_bytes":0,"model_bytes":0,)"
            R"("exposed_seconds":0.0,"forward_seconds":0.0,"backward_seconds":0.0,)"
            R"("update_seconds":0.0,"seconds":0.0})");
}

TEST(Metrics, ALineHasWhatWasThere) {
  std::string line = metrics_line({.step = 4,
                                   .val_loss = 0.5,
                                   .eval_batches = 20,
                                   .samples_per_second = 2,
                                   .tokens_per_second = 128,
                                   .model_bytes = 7,
                                   .device_memory = DeviceMemory{.allocated = 64, .reserved = 96},
                                   .mfu = 0.5,
                                   .sample = "two\nlines"});
  EXPECT_NE(line.find(R"("val_loss":0.5,"eval_batches":20,)"), std::string::npos) << line;
  EXPECT_NE(line.find(R"("samples_per_second":2.0,"tokens_per_second":128.0,)"), std::string::npos)
      << line;
  EXPECT_NE(line.find(R"("model_bytes":7,"device_allocated_bytes":64,"device_reserved_bytes":96,)"
                      R"("mfu":0.5,"exposed_seconds")"),
            std::string::npos)
      << line;
  EXPECT_TRUE(line.ends_with(R"("sample":"two\nlines"})")) << line;
}

TEST(Metrics, ANewRunBeginsEmpty) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "m.jsonl") << "old\n";
  MetricsFile file(folder / "m.jsonl", 0);
  EXPECT_EQ(content_of(folder / "m.jsonl"), "");
  file.append(metrics_at(1));
  file.append(metrics_at(2));
  EXPECT_EQ(content_of(folder / "m.jsonl"),
            metrics_line(metrics_at(1)) + "\n" + metrics_line(metrics_at(2)) + "\n");
}

TEST(Metrics, AResumedRunHasNoStepTwiceAndNoTornLine) {
  test::TemporaryFolder folder;
  {
    MetricsFile file(folder / "m.jsonl", 0);
    for (std::int64_t step : {10, 20, 30}) file.append(metrics_at(step));
  }
  std::ofstream(folder / "m.jsonl", std::ios::app)
      << metrics_line(metrics_at(5)) << '\0' << "\n"  // a block of zeros after a power failure
      << std::string(100'000, '[') << "\n"
      << R"({"step":40,"lo)";
  MetricsFile file(folder / "m.jsonl", 20);
  file.append(metrics_at(30));
  EXPECT_EQ(content_of(folder / "m.jsonl"), metrics_line(metrics_at(10)) + "\n" +
                                                metrics_line(metrics_at(20)) + "\n" +
                                                metrics_line(metrics_at(30)) + "\n");
}

// For a long file, only the end is read and truncated.
TEST(Metrics, RowsAreCutBehindTheStepHoweverManyThereAre) {
  test::TemporaryFolder folder;
  std::string until_1000, all;
  for (std::int64_t step = 1; step <= 1010; ++step) {
    all += metrics_line(metrics_at(step)) + "\n";
    if (step == 1000) until_1000 = all;
  }
  for (const char* torn : {"", "{\"step\":1011,\"lo"}) {
    std::ofstream(folder / "m.jsonl") << all << torn;
    MetricsFile file(folder / "m.jsonl", 1000);
    EXPECT_EQ(content_of(folder / "m.jsonl"), until_1000);
    MetricsFile again(folder / "m.jsonl", 1000);
    EXPECT_EQ(content_of(folder / "m.jsonl"), until_1000);
    MetricsFile far(folder / "m.jsonl", 1);  // further from the end than the part that is read
    EXPECT_EQ(content_of(folder / "m.jsonl"), metrics_line(metrics_at(1)) + "\n");
  }
}

// Opening a pipe would block until there is a writer.
TEST(Metrics, APipeOfThatNameIsRefused) {
  test::TemporaryFolder folder;
  const std::string pipe = folder / "metrics.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(test::message_of([&] { MetricsFile(pipe, 3); }),
            "reading " + pipe + ": expected a file, found a named pipe");
  EXPECT_EQ(test::message_of([&] { MetricsFile(pipe, 0); }),
            "writing " + pipe + ": expected a file or nothing, found a named pipe");
  std::filesystem::remove(pipe);
  MetricsFile begun(pipe, 0);
  begun.append({.step = 1});
  std::filesystem::remove(pipe);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(begun.append({.step = 2}), SystemError);
}

TEST(Metrics, ASampleThatIsNoUtf8DoesNotEndTheRun) {
  EXPECT_NE(metrics_line({.sample = "a\xff"}).find("\"sample\":\"a\xef\xbf\xbd\""),
            std::string::npos);
}

TEST(Metrics, AFolderThatIsGoneIsAnError) {
  test::TemporaryFolder folder;
  EXPECT_THROW(MetricsFile(folder / "no/m.jsonl", 0), SystemError);
}

using test::TemporaryFolder;

struct Span {
  double begin = 0, end = 0;
  [[nodiscard]] bool holds(const Span& other) const {
    return begin <= other.begin && other.end <= end;
  }
};

// Returns the complete events of a file by name.
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

INSTANTIATE_TEST_SUITE_P(Ranks, TracedRanks, testing::Values(1, 3));

// Takes the place of LibTorch's calls of NVTX.
class SeenRanges final : public torch::profiler::impl::ProfilerStubs {
 public:
  SeenRanges() { torch::profiler::impl::registerCUDAMethods(this); }
  ~SeenRanges() override {
    torch::profiler::impl::registerCUDAMethods(const_cast<ProfilerStubs*>(before_));
  }
  SeenRanges(const SeenRanges&) = delete;
  SeenRanges& operator=(const SeenRanges&) = delete;
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*,
              std::int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  // LibTorch appends ", op_id = 1" to some names.
  void rangePush(const char* name) const override {
    const std::string_view whole(name);
    names_.emplace_back(whole.substr(0, whole.find(',')));
  }
  void rangePop() const override { names_.emplace_back("end"); }
  [[nodiscard]] bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  const ProfilerStubs* before_ = torch::profiler::impl::cudaStubs();
  mutable std::vector<std::string> names_;
};

TEST(Trace, GivesRangesToNsight) {
  RunSetup options;
  options.trace = trace_as_ranges;
  options.trace_steps = 2;
  if (!torch::profiler::impl::cudaStubs()->enabled())
    EXPECT_EQ(test::message_of([&] { Trace(options, Group(), c10::kCPU); }),
              "--trace nvtx: this LibTorch has no CUDA");
  const SeenRanges seen;
  Trace trace(options, Group(), c10::kCPU);
  for (int step = 0; step < 5; ++step) {
    trace.begin_step();
    { RECORD_USER_SCOPE("update"); }
    if (trace.is_complete()) trace.write();
  }
  EXPECT_EQ(seen.names(), (std::vector<std::string>{"update", "end", "update", "end"}));
}

// A trace does not affect the training; a run that ends early writes the steps it has.
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

// The trace of rank 1 cannot be written, because there is a folder of its name.
TEST(Trace, ThatCannotBeWrittenAtTheEndEndsARunThatIsSaved) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.save_every = 0;
  options.trace = folder / "trace.json";
  options.trace_steps = 1000;
  std::filesystem::create_directories(folder / "trace.rank1.json/not empty");
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    const std::string message = test::message_of([&] { (void)train(options, group); });
    EXPECT_NE(message.find("writing the trace "), std::string::npos) << message;
  });
  const std::filesystem::path out = options.out;
  for (const char* name : {"step-00000008", "model.safetensors", "result.txt"})
    EXPECT_TRUE(std::filesystem::exists(out / name)) << name;
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

// All ranks report a trace that cannot be written.
TEST(Trace, AFileThatCannotBeWrittenIsOneLine) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.trace = folder / "trace.json";
  std::filesystem::create_directories(folder / "trace.rank1.json" / "full");
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    const std::string text = test::message_of([&] { (void)train(options, group); });
    EXPECT_NE(text.find("writing the trace"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace lockstep::train
