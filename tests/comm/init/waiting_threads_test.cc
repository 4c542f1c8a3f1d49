#include "comm/init/init.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "support/messages.h"
#include "support/processes.h"

namespace lockstep {
namespace {

TEST(WaitingThreads, AreAProblemOfABusyHostWhereTheUserHasNotSaidHowTheyWait) {
  test::expect_ranks(1, [](int) {
    for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
      ::unsetenv(name);
    test::expect_words(problem_of_waiting_threads(2, 4, 9.26),
                       {"load 9.3, cores: 4", "set GOMP_SPINCOUNT=1000 before"});
    EXPECT_EQ(problem_of_waiting_threads(1, 4, 9), "") << "one thread waits for none";
    EXPECT_EQ(problem_of_waiting_threads(2, 4, 4), "") << "each has a core";
    for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}) {
      ::setenv(name, "1", 1);
      EXPECT_EQ(problem_of_waiting_threads(2, 4, 9), "") << name;
      ::unsetenv(name);
    }
  });
}

}  // namespace
}  // namespace lockstep
