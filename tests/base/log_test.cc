#include "base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

std::string captured(const std::function<void()>& action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

class Log : public testing::Test {
 protected:
  void TearDown() override {
    log::set_level(log::Level::info);
    log::set_prefix("");
  }
};

TEST_F(Log, ALineHasTimeLevelAndText) {
  auto text = captured([] { log::warning("rank {} is late by {}s", 3, 12); });
  EXPECT_TRUE(std::regex_match(
      text, std::regex(R"(\d\d:\d\d:\d\d\.\d{3} warning: rank 3 is late by 12s\n)")))
      << text;
}

TEST_F(Log, WhatATerminalWouldActOnIsWrittenOut) {
  auto text = captured([] { log::warning("a peer says '{}'", "\x1b[2J\nforged line"); });
  EXPECT_TRUE(text.ends_with(" warning: a peer says '\\x1b[2J\\nforged line'\n")) << text;
}

TEST_F(Log, ThePrefixIsShownAsItIs) {
  log::set_prefix("rank 2 100%v");
  auto text = captured([] { log::info("hello"); });
  EXPECT_NE(text.find("[rank 2 100%v] info: hello\n"), std::string::npos) << text;
}

TEST_F(Log, TheLevelHidesWhatIsBelow) {
  log::set_level(log::Level::error);
  EXPECT_EQ(log::level(), log::Level::error);
  auto text = captured([] {
    log::debug("no");
    log::info("no");
    log::warning("no");
    log::error("yes");
  });
  EXPECT_EQ(text.find("no"), std::string::npos);
  EXPECT_NE(text.find("error: yes"), std::string::npos);
  log::set_level(log::Level::off);
  EXPECT_EQ(captured([] { log::error("no"); }), "");
}

// The level is read once per process, so another process runs a test of this file.
TEST_F(Log, AnEmptyLevelIsTheUsualOne) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = "LOCKSTEP_LOG= '" + program +
                              "' --gtest_filter=Log.ALineHasTimeLevelAndText 2>&1 | "
                              "grep -q LOCKSTEP_LOG";
  EXPECT_NE(std::system(command.c_str()), 0) << "it warns";
}

TEST_F(Log, LinesOfThreadsStayWhole) {
  auto text = captured([] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([] {
        for (int line = 0; line < 50; ++line) log::info("{}", std::string(200, 'x'));
      });
    }
    for (auto& thread : threads) thread.join();
  });
  std::regex line(R"([^\n]* info: x{200}\n)");
  auto lines =
      std::distance(std::sregex_iterator(text.begin(), text.end(), line), std::sregex_iterator());
  EXPECT_EQ(lines, 200);
}

}  // namespace
}  // namespace lockstep
