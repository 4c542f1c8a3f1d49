#include "launch/waiting_lines.h"

#include <lockstep/base/deadline.h>

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

std::vector<std::string> lines_while_waiting(Duration wait, const std::string& what) {
  std::vector<std::string> lines;
  {
    WaitingLines waiting([&](const std::string& line) { lines.push_back(line); }, false);
    waiting.wait_for("nobody yet");
    if (!what.empty()) waiting.wait_for(what);
    std::this_thread::sleep_for(wait);
  }
  return lines;
}

TEST(WaitingLines, AShortWaitIsNotWorthALine) {
  EXPECT_TRUE(lines_while_waiting(50ms, "node 1").empty());
}

TEST(WaitingLines, AfterASecondTheySayWhatIsWaitedForNow) {
  EXPECT_EQ(lines_while_waiting(1500ms, "node 1"), std::vector<std::string>{"waiting for node 1"});
}

}  // namespace
}  // namespace lockstep::launch
