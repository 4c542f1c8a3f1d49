#include "support/watchdog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sys/time.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

// What the signal handler writes: made before the alarm is set, since a handler may not allocate.
char last_words[512];

void end_program(int) {
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, last_words, std::strlen(last_words));
  ::_exit(watchdog_exit_code);
}

void set_alarm(int seconds) {
  itimerval timer{};
  timer.it_value.tv_sec = seconds;
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

class Watchdog : public testing::EmptyTestEventListener {
 public:
  explicit Watchdog(int seconds) : seconds_(seconds) {}

  void OnTestStart(const testing::TestInfo& test) override {
    std::string words = "\nwatchdog: " + std::string(test.test_suite_name()) + "." + test.name() +
                        " has run for more than " + std::to_string(seconds_) +
                        " s (LOCKSTEP_TEST_SECONDS); ending the program\n";
    last_words[words.copy(last_words, sizeof(last_words) - 1)] = '\0';
    set_alarm(seconds_);
  }
  void OnTestEnd(const testing::TestInfo&) override { set_alarm(0); }

 private:
  int seconds_;
};

}  // namespace

void install_watchdog() {
  const char* setting = std::getenv("LOCKSTEP_TEST_SECONDS");
  int seconds = std::max(1, setting != nullptr ? std::atoi(setting) : 60);
  struct sigaction action {};
  action.sa_handler = end_program;
  ::sigaction(SIGALRM, &action, nullptr);
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog(seconds));  // gtest deletes it
}

}  // namespace lockstep::test
