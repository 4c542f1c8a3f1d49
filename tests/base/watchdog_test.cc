#include "support/watchdog.h"

#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

// Forks a child with a child of its own, writes the pid of the latter to a file, and hangs.
void hang_with_descendants() {
  const char* file = std::getenv("LOCKSTEP_WATCHDOG_CHILD");
  ASSERT_NE(file, nullptr);
  pid_t child = ::fork();
  if (child == 0) {
    pid_t grandchild = ::fork();
    if (grandchild > 0) std::ofstream(file) << grandchild << std::endl;
    for (;;) ::pause();
  }
  for (;;) ::pause();
}

// The tests below run these tests in separate processes.
TEST(Watchdog, DISABLED_HangsWithAChild) { hang_with_descendants(); }
TEST(Watchdog, DISABLED_HangsWithAChildOfAThread) { std::thread(hang_with_descendants).join(); }

bool is_running(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/stat");
  std::string number, name, state;
  return status >> number >> name >> state && state != "Z";
}

void expect_ended_with_descendants(const std::string& name) {
  test::TemporaryFolder folder;
  auto file = (folder.path() / "child").string();
  pid_t program = ::fork();
  if (program == 0) {
    ::setenv("LOCKSTEP_WATCHDOG_CHILD", file.c_str(), 1);
    ::setenv("LOCKSTEP_TEST_SECONDS", "1", 1);
    ::execl("/proc/self/exe", "base_test", "--gtest_also_run_disabled_tests",
            ("--gtest_filter=Watchdog." + name).c_str(), nullptr);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(program, &status, 0), program);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), test::watchdog_exit_code);
  pid_t grandchild = 0;
  ASSERT_TRUE(std::ifstream(file) >> grandchild);
  for (int i = 0; i < 100 && is_running(grandchild); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_FALSE(is_running(grandchild));
}

TEST(Watchdog, EndsTheTestAndWhatItHasStarted) {
  expect_ended_with_descendants("DISABLED_HangsWithAChild");
}

TEST(Watchdog, EndsWhatAThreadHasStarted) {
  expect_ended_with_descendants("DISABLED_HangsWithAChildOfAThread");
}

}  // namespace
