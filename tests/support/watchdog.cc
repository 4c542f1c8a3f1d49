#include "support/watchdog.h"

#include "support/sanitizers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

constexpr int deepest_descendant = 8;

// The output of the signal handler, prepared before the alarm is set because a handler must not
// allocate.
char last_words[512];

// Reads the pids in the `children` file of a process, with async-signal-safe calls only.
std::size_t children_of(pid_t process, std::span<pid_t> children) {
  char path[64] = "/proc/";
  auto append = [end = path + std::strlen(path)](std::string_view text) mutable {
    end += text.copy(end, text.size());
    *end = '\0';
  };
  char digits[16];
  std::string_view number(digits, std::to_chars(digits, std::end(digits), process).ptr);
  append(number);
  append("/task/");
  append(number);
  append("/children");
  int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[4096];
  auto length = ::read(file, text, sizeof(text));
  ::close(file);
  std::size_t count = 0;
  const char* end = text + std::max<ssize_t>(length, 0);
  for (const char* at = text; at < end && count < children.size(); ++at) {
    auto [next, error] = std::from_chars(at, end, children[count]);
    if (error == std::errc()) ++count;
    at = next;
  }
  return count;
}

// Processes started by a test must not outlive it: a program that waits for their output would
// hang. Kills children first, so that none is reparented before it was found.
void kill_descendants(pid_t process, int depth = 0) {
  pid_t children[128];
  auto count = children_of(process, children);
  for (std::size_t i = 0; i < count; ++i) {
    if (depth < deepest_descendant) kill_descendants(children[i], depth + 1);
    ::kill(children[i], SIGKILL);
  }
}

void end_program(int) {
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, last_words, std::strlen(last_words));
  kill_descendants(::getpid());
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

void allow_more_time(int seconds) {
  itimerval timer{};
  if (::getitimer(ITIMER_REAL, &timer) != 0) return;
  if (timer.it_value.tv_sec > 0 && timer.it_value.tv_sec < seconds) set_alarm(seconds);
}

void install_watchdog() {
  const char* setting = std::getenv("LOCKSTEP_TEST_SECONDS");
  constexpr int usual = under_sanitizer ? 600 : 60;
  int seconds = std::max(1, setting != nullptr ? std::atoi(setting) : usual);
  struct sigaction action {};
  action.sa_handler = end_program;
  ::sigaction(SIGALRM, &action, nullptr);
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog(seconds));  // gtest deletes it
}

}  // namespace lockstep::test
