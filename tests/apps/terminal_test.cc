// The progress line of `lockstep train` on a terminal, from a single process and through the
// launcher.
#include "apps/command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>

#include <fcntl.h>
#include <sys/ioctl.h>

#include "support/pseudo_terminal.h"
#include "support/temporary_folder.h"

namespace lockstep::apps {
namespace {

constexpr int columns = 62;

// Starts `lockstep WORDS` with standard output on a new terminal. Returns the output.
std::string on_terminal(const std::vector<std::string>& words,
                        const std::vector<std::string>& variables) {
  const sys::FileDescriptor master = test::make_pseudo_terminal();
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(::ioctl(master.get(), TIOCSWINSZ, &size), 0);
  sys::FileDescriptor terminal(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  sys::Command command{.file = lockstep_program(), .arguments = {"lockstep"}, .environment = {}};
  command.arguments.insert(command.arguments.end(), words.begin(), words.end());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with("COLUMNS=") && !text.starts_with("TERM=") &&
        !text.starts_with("NO_COLOR=") && !text.starts_with("LOCKSTEP_TERMINAL="))
      command.environment.emplace_back(text);
  }
  command.environment.insert(command.environment.end(), variables.begin(), variables.end());
  command.output = terminal.get();
  command.end_with_parent = true;
  sys::Process process = sys::Process::spawn(command);
  terminal.reset();
  std::string written;
  char buffer[4096];
  // Reading fails once the last process has closed the terminal.
  while (const ssize_t count = ::read(master.get(), buffer, sizeof(buffer))) {
    if (count < 0) break;
    written.append(buffer, static_cast<std::size_t>(count));
  }
  EXPECT_EQ(process.wait(Deadline::never())->code, 0) << written;
  return written;
}

class OnATerminal : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(LOCKSTEP_PROGRAM_DIR "/lockstep-train"))
      GTEST_SKIP() << "lockstep-train was not built";
    if (!test::make_pseudo_terminal()) GTEST_SKIP() << test::no_terminals;
  }
  std::string train(const char* ranks, const std::vector<std::string>& variables) {
    std::filesystem::remove_all(folder_ / "out");
    return on_terminal({"train", "mlp", "--out", folder_ / "out", "--steps", "400", "--eval-every",
                        "200", "--threads", "1", "-n", ranks},
                       variables);
  }
  test::TemporaryFolder folder_;
};

std::string without_colours(const std::string& text) {
  return std::regex_replace(text, std::regex("\033\\[[0-9]*m"), "");
}

TEST_F(OnATerminal, EveryLineFitsAndHasABar) {
  for (const char* ranks : {"1", "2"}) {
    const std::string written = train(ranks, {"TERM=xterm"});
    EXPECT_NE(written.find("\033[36m"), std::string::npos) << written;
    EXPECT_NE(written.find("\033[K\r"), std::string::npos) << written;
    EXPECT_NE(written.find("done: val_loss="), std::string::npos) << written;
    EXPECT_EQ(written.find("?"), std::string::npos) << written;
    std::string plain = std::regex_replace(without_colours(written), std::regex("\033\\[K"), "");
    EXPECT_NE(plain.find("[          "), std::string::npos) << plain;
    EXPECT_NE(plain.find("%  "), std::string::npos) << plain;
    std::ranges::replace(plain, '\r', '\n');
    std::istringstream lines(plain);
    for (std::string line; std::getline(lines, line);)
      if (!line.starts_with("done: "))  // complete, for scripts
        EXPECT_LT(line.size(), static_cast<std::size_t>(columns)) << line;
  }
}

TEST_F(OnATerminal, WithoutColoursOnlyTheLineIsRewritten) {
  const std::string written = train("2", {"TERM=xterm", "NO_COLOR=1"});
  EXPECT_NE(written.find("\033[K\r"), std::string::npos) << written;
  EXPECT_EQ(without_colours(written), written);
}

TEST_F(OnATerminal, ADumbOneGetsPlainLines) {
  for (const char* ranks : {"1", "2"}) {
    const std::string written = train(ranks, {"TERM=dumb"});
    EXPECT_EQ(written.find('\033'), std::string::npos) << written;
    EXPECT_NE(written.find("step 200/400  loss "), std::string::npos) << written;
    EXPECT_NE(written.find("done: val_loss="), std::string::npos) << written;
  }
}

}  // namespace
}  // namespace lockstep::apps
