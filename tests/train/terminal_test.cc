#include "train/progress.h"

#include "support/pseudo_terminal.h"
#include "sys/file_descriptor.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <cstdlib>
#include <map>
#include <optional>

namespace lockstep::train {
namespace {

// Variables as a test wants them; as they were, afterwards.
class Variables {
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
  ~Variables() {
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

  Variables variables_;
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

// mpirun ... > log would have bars and colours in the file.
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
