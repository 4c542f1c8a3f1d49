// Tests the test support itself: a helper that hides failures would hide all others.
#include "support/processes.h"

#include "support/free_port.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <stdexcept>
#include <thread>

#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

TEST(Processes, EachRankIsAProcessThatKnowsItsNumber) {
  TemporaryFolder folder;
  for (int count : {1, 2, 3, 5}) {
    expect_ranks(count,
                 [&](int rank) { std::ofstream(folder / std::to_string(rank)) << ::getpid(); });
    for (int rank = 0; rank < count; ++rank) {
      pid_t pid = 0;
      std::ifstream(folder / std::to_string(rank)) >> pid;
      EXPECT_GT(pid, 0);
      EXPECT_NE(pid, ::getpid());
    }
  }
}

TEST(Processes, FailuresOfARankAreSeen) {
  auto results = run_ranks(4, [](int rank) {
    if (rank == 0) {
      EXPECT_EQ(rank, 7) << "this failure is part of the test";
    }
    if (rank == 1) throw std::runtime_error("this exception is part of the test");
    if (rank == 2) ::raise(SIGKILL);
  });
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_EQ(results[2].signal, SIGKILL);
  EXPECT_FALSE(results[2].ok());
  EXPECT_TRUE(results[3].ok());
}

TEST(Processes, FailuresOfARanksThreadsAreSeen) {
  auto results = run_ranks(1, [](int) {
    std::thread([] { ADD_FAILURE() << "this failure is part of the test"; }).join();
  });
  EXPECT_EQ(results[0].exit_code, 1);
}

TEST(Processes, OverdueRanksAreKilled) {
  auto start = std::chrono::steady_clock::now();
  auto results = run_ranks(
      2,
      [](int rank) {
        if (rank == 1) ::pause();
      },
      300ms);
  EXPECT_TRUE(results[0].ok());
  EXPECT_TRUE(results[1].overdue);
  EXPECT_EQ(results[1].signal, SIGKILL);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST(Processes, ARankCanBeKilledFromOutside) {
  RankProcesses ranks(2, [](int rank) {
    if (rank == 0) ::pause();
  });
  EXPECT_TRUE(ranks.wait(1, 20s).ok());
  ranks.kill(0, SIGTERM);
  EXPECT_EQ(ranks.wait(0, 20s).signal, SIGTERM);
}

TEST(TemporaryFolder, IsGoneAfterwards) {
  std::filesystem::path path;
  {
    TemporaryFolder folder;
    path = folder.path();
    std::filesystem::create_directories(folder / "a/b");
    EXPECT_TRUE(std::filesystem::is_directory(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(FreePort, IsAPort) { EXPECT_GT(free_port(), 1023); }

}  // namespace
}  // namespace lockstep::test
