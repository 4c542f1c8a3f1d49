#include "support/watchdog.h"

#include "support/sanitizers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

constexpr int deepest_descendant = 8;

// The output of the signal handler, prepared before the alarm is set because a handler must not
// allocate.
char last_words[512];

// Children of a process; each of its threads lists those that it has forked. The functions below
// make async-signal-safe calls only.
struct Children {
  std::array<pid_t, 128> pids{};
  std::size_t count = 0;
};

// Adds the pids in the file THREAD/children of the folder `threads`.
void add_children_of(int threads, std::string_view thread, Children& children) {
  constexpr std::string_view name = "/children";
  char path[64];
  if (thread.size() + name.size() >= sizeof(path)) return;
  char* path_end = path + thread.copy(path, thread.size());
  path_end += name.copy(path_end, name.size());
  *path_end = '\0';
  const int file = ::openat(threads, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  char text[4096];
  const ssize_t length = ::read(file, text, sizeof(text));
  ::close(file);
  const char* end = text + std::max<ssize_t>(length, 0);
  for (const char* at = text; at < end && children.count < children.pids.size(); ++at) {
    auto [next, error] = std::from_chars(at, end, children.pids[children.count]);
    if (error == std::errc()) ++children.count;
    at = next;
  }
}

Children children_of(pid_t process) {
  Children children;
  constexpr std::string_view proc = "/proc/", task = "/task";
  char path[64];
  char* end = path + proc.copy(path, proc.size());
  end = std::to_chars(end, std::end(path) - task.size() - 1, process).ptr;
  end += task.copy(end, task.size());
  *end = '\0';
  const int threads = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (threads < 0) return children;
  alignas(dirent64) char entries[2048];
  for (;;) {
    const ssize_t size = ::getdents64(threads, entries, sizeof(entries));
    if (size <= 0) break;
    for (ssize_t at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      if (entry->d_name[0] != '.') add_children_of(threads, entry->d_name, children);
    }
  }
  ::close(threads);
  return children;
}

// Processes started by a test must not outlive it: a program that waits for their output would
// hang. Kills children first, so that none is reparented before it was found.
void kill_descendants(pid_t process, int depth = 0) {
  const Children children = children_of(process);
  for (std::size_t i = 0; i < children.count; ++i) {
    if (depth < deepest_descendant) kill_descendants(children.pids[i], depth + 1);
    ::kill(children.pids[i], SIGKILL);
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
