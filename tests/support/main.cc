// The main() function of every test program.
#include "support/watchdog.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include <unistd.h>

namespace {

// Sets one thread per process: ranks share the cores, and bitwise comparisons need a fixed number.
// OpenMP reads the variable when its library is loaded, before main(), so if the variable is not
// set, the program executes itself again.
void fix_thread_count(char** arguments) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  ::setenv("OMP_NUM_THREADS", "1", 1);
  ::execv("/proc/self/exe", arguments);
}

// Keeps only the result file of rank 0: all ranks that mpirun started run the same tests and would
// write the same file.
void leave_results_to_rank_0() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    const char* rank = std::getenv(name);
    if (rank != nullptr && std::string_view(rank) != "0") GTEST_FLAG_SET(output, "");
  }
}

}  // namespace

int main(int count, char** arguments) {
  fix_thread_count(arguments);
  leave_results_to_rank_0();
  testing::InitGoogleTest(&count, arguments);
  lockstep::test::install_watchdog();
  return RUN_ALL_TESTS();
}
