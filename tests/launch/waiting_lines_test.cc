#include "launch/node_ranks.h"

#include <lockstep/base/deadline.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// Returns the lines that are printed in 50 ms or until the first line.
std::vector<std::string> lines_while_waiting(bool for_a_line) {
  std::vector<std::string> lines;
  std::atomic<bool> has_come = false;
  {
    WaitingLines waiting(
        [&](const std::string& line) {
          lines.push_back(line);
          has_come = true;
        },
        false);
    waiting.wait_for("nobody yet");
    waiting.wait_for("node 1");
    std::this_thread::sleep_for(50ms);
    const Deadline limit = Deadline::after(30s);
    while (for_a_line && !has_come && !limit.passed()) std::this_thread::sleep_for(5ms);
  }
  return lines;
}

// If a busy machine makes the wait long, the test tries again.
TEST(WaitingLines, AShortWaitIsNotWorthALine) {
  for (int i = 0; i < 10; ++i) {
    const auto begin = Clock::now();
    const auto lines = lines_while_waiting(false);
    if (Clock::now() - begin > 900ms) continue;
    EXPECT_TRUE(lines.empty());
    return;
  }
}

TEST(WaitingLines, AfterASecondTheySayWhatIsWaitedForNow) {
  EXPECT_EQ(lines_while_waiting(true), std::vector<std::string>{"waiting for node 1"});
}

}  // namespace
}  // namespace lockstep::launch
