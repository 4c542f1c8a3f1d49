// The main() of every test program.
#include "support/watchdog.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include <unistd.h>

namespace {

// One thread a process: ranks share the cores, and bit-for-bit checks need a fixed count. OpenMP
// reads the variable when its library is loaded, before main(), so a program that finds it unset
// starts itself again.
void fix_thread_count(char** arguments) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  ::setenv("OMP_NUM_THREADS", "1", 1);
  ::execv("/proc/self/exe", arguments);
}

}  // namespace

int main(int count, char** arguments) {
  fix_thread_count(arguments);
  testing::InitGoogleTest(&count, arguments);
  lockstep::test::install_watchdog();
  return RUN_ALL_TESTS();
}
