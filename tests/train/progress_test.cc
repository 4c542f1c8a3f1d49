#include <lockstep/train/progress.h>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>

namespace lockstep::train {
namespace {

// What is written to a stream that is no terminal.
class Paper {
 public:
  Paper() : file_(std::tmpfile()) {}
  ~Paper() { std::fclose(file_); }
  [[nodiscard]] std::FILE* stream() const { return file_; }
  [[nodiscard]] std::string text() const {
    std::rewind(file_);
    std::array<char, 4096> buffer{};
    return {buffer.data(), std::fread(buffer.data(), 1, buffer.size(), file_)};
  }

 private:
  std::FILE* file_;
};

ProgressRow progress_of(std::int64_t step) {
  return {.step = step, .steps = 100, .loss = 2.5, .samples_per_second = 391.6, .seconds_left = 67};
}

TEST(Progress, DurationsReadLikeAClock) {
  EXPECT_EQ(duration_text(0), "0:00");
  EXPECT_EQ(duration_text(7.4), "0:07");
  EXPECT_EQ(duration_text(760), "12:40");
  EXPECT_EQ(duration_text(10931), "3:02:11");
  EXPECT_EQ(duration_text(-3), "0:00");
  EXPECT_EQ(duration_text(std::nan("")), "?");
  EXPECT_EQ(duration_text(1e300), "?");
}

TEST(Progress, ARowIsOneLine) {
  ProgressRow row = progress_of(7);
  EXPECT_EQ(progress_text(row), "step 7/100  loss 2.500  392 samples/s  1:07 left");
  row.resident_bytes = 431'700'000;
  row.exposed_seconds = 0.00312;
  EXPECT_EQ(progress_text(row),
            "step 7/100  loss 2.500  392 samples/s  432 MB  3.1 ms waiting  1:07 left");
  row.resident_bytes = 0;
  row.val_loss = 1.25;
  row.accuracy = 0.5;
  EXPECT_EQ(progress_text(row),
            "step 7/100  loss 2.500  val_loss 1.250  accuracy 0.5000  392 samples/s  1:07 left");
}

TEST(Progress, ALogGetsPlainLinesNowAndThenAndEveryEvaluation) {
  Paper paper;
  Progress progress(paper.stream(), false, std::chrono::hours(1));
  progress.show(progress_of(1));
  progress.show(progress_of(2));
  ProgressRow evaluated = progress_of(3);
  evaluated.val_loss = 1;
  progress.show(evaluated);
  progress.say("done");
  progress.finish();
  EXPECT_EQ(paper.text(),
            progress_text(progress_of(1)) + "\n" + progress_text(evaluated) + "\ndone\n");
}

TEST(Progress, ATerminalsLineIsRewrittenAndGoesBeforeAnotherOne) {
  Paper paper;
  {
    Progress progress(paper.stream(), true);
    progress.show(progress_of(1));
    progress.say("done");
  }
  EXPECT_EQ(paper.text(), progress_text(progress_of(1)) + "\033[K\r" + "\033[K\r" + "done\n");
}

}  // namespace
}  // namespace lockstep::train
