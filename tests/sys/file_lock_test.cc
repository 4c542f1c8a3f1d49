#include "sys/file_lock.h"

#include "support/temporary_folder.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

using State = FileLock::State;

TEST(FileLock, OneHolderAtATimeWhomTheOthersName) {
  test::TemporaryFolder folder;
  {
    FileLock first(folder / "lock");
    EXPECT_EQ(first.state(), State::held);
    FileLock second(folder / "lock");
    EXPECT_EQ(second.state(), State::busy);
    EXPECT_NE(second.about().find("process " + std::to_string(::getpid()) + " on host "),
              std::string::npos)
        << second.about();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(FileLock(folder / "lock").state(), State::held);
}

TEST(FileLock, WhatAKilledHolderLeftHoldsNobody) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "lock") << "71 elsewhere\n";
  EXPECT_EQ(FileLock(folder / "lock").state(), State::held);
}

TEST(FileLock, ManyThreadsNeverHoldItTogether) {
  test::TemporaryFolder folder;
  std::atomic<int> holders{0}, taken{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        FileLock lock(folder / "lock");
        if (lock.state() != State::held) continue;
        EXPECT_EQ(holders.fetch_add(1), 0);
        ++taken;
        holders.fetch_sub(1);
      }
    });
  threads.clear();
  EXPECT_GT(taken, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FileLock, AFolderThatIsNotThereIsASystemError) {
  test::TemporaryFolder folder;
  EXPECT_THROW(FileLock(folder / "no/lock"), SystemError);
}

}  // namespace
}  // namespace lockstep::sys
