#include "train/metrics.h"

#include <lockstep/base/error.h>

#include "support/temporary_folder.h"
#include "train/messages.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

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
                                   .sample = "two\nlines"});
  EXPECT_NE(line.find(R"("val_loss":0.5,"eval_batches":20,)"), std::string::npos) << line;
  EXPECT_NE(line.find(R"("samples_per_second":2.0,"tokens_per_second":128.0,)"), std::string::npos)
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
      << metrics_line(metrics_at(5)) << '\0' << "\n"  // a block that a power cut left empty
      << std::string(100'000, '[') << "\n"
      << R"({"step":40,"lo)";
  MetricsFile file(folder / "m.jsonl", 20);
  file.append(metrics_at(30));
  EXPECT_EQ(content_of(folder / "m.jsonl"), metrics_line(metrics_at(10)) + "\n" +
                                                metrics_line(metrics_at(20)) + "\n" +
                                                metrics_line(metrics_at(30)) + "\n");
}

// Of a long file the end alone is read and cut.
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
    MetricsFile far(folder / "m.jsonl", 1);  // further than the end that is read
    EXPECT_EQ(content_of(folder / "m.jsonl"), metrics_line(metrics_at(1)) + "\n");
  }
}

// Opening a pipe would wait for a writer for ever.
TEST(Metrics, APipeOfThatNameIsRefused) {
  test::TemporaryFolder folder;
  const std::string pipe = folder / "metrics.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(test::message_of([&] { MetricsFile(pipe, 3); }),
            "reading " + pipe + ": expected a file, found a named pipe");
  MetricsFile begun(pipe, 0);
  begun.append({.step = 1});
  EXPECT_TRUE(std::filesystem::is_regular_file(pipe));
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

}  // namespace
}  // namespace lockstep::train
