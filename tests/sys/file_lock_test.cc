#include "sys/file_lock.h"

#include "support/processes.h"
#include "support/temporary_folder.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

// Makes every flock() of this process fail as on a filesystem without locks.
void refuse_locks() {
  std::array<sock_filter, 4> program{
      {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 1),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOLCK),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(FileLock, AFilesystemWithoutLocksIsSaid) {
  test::TemporaryFolder folder;
  test::expect_ranks(1, [&](int) {
    refuse_locks();
    {
      FileLock lock(folder / "lock");
      EXPECT_EQ(lock.state(), State::impossible);
      EXPECT_EQ(lock.about(), "No locks available");
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  });
}

TEST(FileLock, AFolderThatIsNotThereIsASystemError) {
  test::TemporaryFolder folder;
  EXPECT_THROW(FileLock(folder / "no/lock"), SystemError);
}

}  // namespace
}  // namespace lockstep::sys
