#include "train/progress.h"

#include "support/pseudo_terminal.h"
#include "sys/file_descriptor.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>

namespace lockstep::train {
namespace {

// A stream that is not a terminal, and its content.
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

MetricsRow progress_of(std::int64_t step) {
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
  MetricsRow row = progress_of(7);
  EXPECT_EQ(progress_text(row), "step 7/100  loss 2.500  392 samples/s  1:07 left");
  row.resident_bytes = 431'700'000;
  row.exposed_seconds = 0.00312;
  EXPECT_EQ(progress_text(row),
            "step 7/100  loss 2.500  392 samples/s  412 MiB  3.1 ms waiting  1:07 left");
  row.forward_seconds = 0.0041;
  row.backward_seconds = 0.0092;
  row.update_seconds = 0.0013;
  EXPECT_EQ(progress_text(row),
            "step 7/100  loss 2.500  392 samples/s  412 MiB  "
            "forward 4.1, backward 9.2, waiting 3.1, update 1.3 ms  1:07 left");
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
  MetricsRow evaluated = progress_of(3);
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
  std::string line = progress_line(progress_of(1), {.columns = 80, .colours = true});
  EXPECT_EQ(paper.text(), line + "\033[K\r" + "\033[K\r" + "done\n");
}

TEST(Progress, WhatIsNotKnownYetIsLeftOut) {
  MetricsRow row{.step = 1, .steps = 100, .loss = 2.5};
  EXPECT_EQ(progress_text(row), "step 1/100  loss 2.500");
  EXPECT_EQ(progress_line(row, {.columns = 60}),
            "[                              ]    1%  1/100  loss 2.500");
}

TEST(Progress, WhatGoesOnBetweenTwoRowsIsShownWhenItTakesLong) {
  Paper paper;
  {
    Progress plain(paper.stream(), false, std::chrono::hours(1));
    plain.show_text("evaluating 1%");  // shorter than the interval of an hour
  }
  EXPECT_EQ(paper.text(), "");
  Paper slow;
  Progress plain(slow.stream(), false, std::chrono::milliseconds(0));
  plain.show_text("evaluating 1%");
  plain.show_text("evaluating 2%");
  EXPECT_EQ(slow.text(), "evaluating 2%\n");
  Paper screen;
  Progress in_place(screen.stream(), true);
  in_place.show_text("evaluating 1%");
  in_place.show_text("evaluating 2%");  // within a tenth of a second
  EXPECT_EQ(screen.text(), "evaluating 1%\033[K\r");
}

TEST(Progress, ATaskWithTokensCountsThem) {
  MetricsRow row = progress_of(7);
  row.tokens_per_second = 25'064;
  EXPECT_EQ(progress_text(row), "step 7/100  loss 2.500  25.1k tokens/s  1:07 left");
}

TEST(Progress, ATerminalsLineFitsAndKeepsWhatMattersMost) {
  MetricsRow row = progress_of(50);
  row.resident_bytes = 431'700'000;
  row.exposed_seconds = 0.00312;
  auto at = [&](int columns) { return progress_line(row, {.columns = columns}); };
  EXPECT_EQ(at(120),
            "[==============>               ]   50%  50/100  loss 2.500  392 samples/s  "
            "412 MiB  3.1 ms waiting  1:07 left");
  EXPECT_EQ(at(80),
            "[=======>        ]   50%  50/100  loss 2.500  392 samples/s  412 MiB  1:07 left");
  EXPECT_EQ(at(60), "[=====>       ]   50%  loss 2.500  392 samples/s  1:07 left");
  EXPECT_EQ(at(40), " 50%  loss 2.500  1:07 left");
  EXPECT_EQ(at(20), " 50%  loss 2.500");
  EXPECT_EQ(at(6), " 50%");
  EXPECT_EQ(at(1), "");
  for (int columns = 0; columns < 200; ++columns)
    EXPECT_LT(static_cast<int>(at(columns).size()), std::max(columns, 1)) << columns;
}

TEST(Progress, AnEvaluationsLineFits) {
  MetricsRow row = progress_of(50);
  row.resident_bytes = 431'700'000;
  row.val_loss = 1.25;
  EXPECT_EQ(evaluation_line(row, {.columns = 200}), progress_text(row));
  EXPECT_EQ(evaluation_line(row, {.columns = 60}),
            "step 50/100  loss 2.500  val_loss 1.250  392 samples/s");
  EXPECT_EQ(evaluation_line(row, {.columns = 30, .colours = true}),
            "step 50/100  \033[36mval_loss 1.250\033[0m");
  for (int columns = 0; columns < 200; ++columns)
    EXPECT_LT(static_cast<int>(evaluation_line(row, {.columns = columns}).size()),
              std::max(columns, 1));
}

TEST(Progress, TheBarGoesFromEmptyToFull) {
  auto bar_at = [](std::int64_t step) {
    std::string line = progress_line({.step = step, .steps = 10, .loss = 1}, {.columns = 60});
    return line.substr(0, line.find(']') + 1);
  };
  EXPECT_EQ(bar_at(0), "[" + std::string(30, ' ') + "]");
  EXPECT_EQ(bar_at(5), "[" + std::string(14, '=') + ">" + std::string(15, ' ') + "]");
  EXPECT_EQ(bar_at(10), "[" + std::string(30, '=') + "]");
  EXPECT_EQ(bar_at(12), "[" + std::string(30, '=') + "]");
}

TEST(Progress, ColoursAreOnTheBarAlone) {
  MetricsRow row = progress_of(50);
  std::string plain = progress_line(row, {.columns = 80});
  std::string coloured = progress_line(row, {.columns = 80, .colours = true});
  for (const char* code : {"\033[36m", "\033[0m"}) {
    std::size_t at = coloured.find(code);
    ASSERT_NE(at, std::string::npos);
    coloured.erase(at, std::string_view(code).size());
  }
  EXPECT_EQ(coloured, plain);
}

// Sets environment variables, and restores them afterwards.
class TerminalVariables {
 public:
  void set(const char* name, const char* value) {
    const char* before = std::getenv(name);
    before_.try_emplace(name,
                        before == nullptr ? std::nullopt : std::optional<std::string>(before));
    if (value == nullptr)
      ::unsetenv(name);
    else
      ::setenv(name, value, 1);
  }
  ~TerminalVariables() {
    for (const auto& [name, value] : before_)
      if (value)
        ::setenv(name.c_str(), value->c_str(), 1);
      else
        ::unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

class Terminal : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"COLUMNS", "LOCKSTEP_TERMINAL", "NO_COLOR", "OMPI_COMM_WORLD_RANK"})
      set(name, nullptr);
    set("TERM", "xterm");
    master_ = test::make_pseudo_terminal();
    if (!master_) GTEST_SKIP() << test::no_terminals;
    path_ = ::ptsname(master_.get());
    stream_ = ::fopen(path_.c_str(), "r+e");
    ASSERT_NE(stream_, nullptr);
  }
  void TearDown() override {
    if (stream_ != nullptr) std::fclose(stream_);
  }

  void set(const char* name, const char* value) { variables_.set(name, value); }
  void resize(unsigned short columns) {
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(master_.get(), TIOCSWINSZ, &size), 0);
  }

  TerminalVariables variables_;
  sys::FileDescriptor master_;
  std::string path_;
  std::FILE* stream_ = nullptr;
};

TEST_F(Terminal, IsTheStreamsOwnOrTheOneThatIsNamed) {
  EXPECT_EQ(terminal_of(stream_), path_);
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(terminal_of(file), std::nullopt);
  set("LOCKSTEP_TERMINAL", path_.c_str());
  EXPECT_EQ(terminal_of(file), path_);
  set("LOCKSTEP_TERMINAL", "1");
  EXPECT_TRUE(is_terminal(file));
  std::fclose(file);
}

TEST_F(Terminal, ADumbOneIsNone) {
  set("TERM", "dumb");
  EXPECT_FALSE(is_terminal(stream_));
  set("LOCKSTEP_TERMINAL", "1");
  EXPECT_FALSE(is_terminal(stream_));
  set("LOCKSTEP_TERMINAL", nullptr);
  set("TERM", nullptr);
  EXPECT_FALSE(is_terminal(stream_));
}

// Otherwise, `mpirun ... > log` would write bars and colours to the file.
TEST_F(Terminal, ThatOfARankOfOpenMpiIsNone) {
  set("OMPI_COMM_WORLD_RANK", "0");
  EXPECT_FALSE(is_terminal(stream_));
}

TEST_F(Terminal, ItsColumnsAreThoseOfNow) {
  resize(61);
  EXPECT_EQ(terminal_columns(stream_), 61);
  resize(132);
  EXPECT_EQ(terminal_columns(stream_), 132);
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(terminal_columns(file), 80);
  set("LOCKSTEP_TERMINAL", path_.c_str());
  EXPECT_EQ(terminal_columns(file), 132);
  set("LOCKSTEP_TERMINAL", "/dev/none");
  EXPECT_EQ(terminal_columns(file), 80);
  set("COLUMNS", "40");
  EXPECT_EQ(terminal_columns(stream_), 40);
  for (const char* nonsense : {"", "wide", "0", "-3"}) {
    set("COLUMNS", nonsense);
    EXPECT_EQ(terminal_columns(stream_), 132) << nonsense;
  }
  std::fclose(file);
}

TEST_F(Terminal, ColoursCanBeRefused) {
  EXPECT_TRUE(wants_colours());
  set("NO_COLOR", "");
  EXPECT_TRUE(wants_colours());
  set("NO_COLOR", "1");
  EXPECT_FALSE(wants_colours());
}

}  // namespace
}  // namespace lockstep::train
