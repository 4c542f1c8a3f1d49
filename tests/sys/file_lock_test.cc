#include "sys/file_lock.h"

#include "support/denied_calls.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/stat.h>
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

// In a folder that several users can write to, with file modes from their umask.
TEST(FileLock, WhatAnotherUserLeftHoldsNobody) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  test::TemporaryFolder folder;
  for (const std::filesystem::perms of_folder :
       {std::filesystem::perms{0777}, std::filesystem::perms{01777}}) {
    std::filesystem::permissions(folder.path(), of_folder);
    std::ofstream(folder / "lock") << "71 elsewhere\n";
    std::filesystem::permissions(folder / "lock", std::filesystem::perms{0644});
    test::expect_ranks(1, [&](int) {
      constexpr uid_t nobody = 65534;
      ASSERT_EQ(::seteuid(nobody), 0);
      FileLock first(folder / "lock"), second(folder / "lock");
      EXPECT_EQ(first.state(), State::held);
      EXPECT_EQ(second.state(), State::busy);
    });
    std::filesystem::remove(folder / "lock");
  }
}

// In a folder that others can write to, the lock's name may be a link to a file that must not be
// truncated.
TEST(FileLock, NothingElseIsTakenForItsFile) {
  test::TemporaryFolder folder;
  const auto text_of = [](const std::filesystem::path& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto refused = [&] {
    const std::string line = test::message_of<BadInput>([&] { FileLock(folder / "lock"); });
    test::expect_words(line, {(folder / "lock").string() + ": expected a lock file, found "});
  };
  std::ofstream(folder / "keys") << "71 host\n";
  std::filesystem::create_symlink(folder / "keys", folder / "lock");
  refused();
  EXPECT_EQ(text_of(folder / "keys"), "71 host\n");
  std::filesystem::remove(folder / "lock");
  for (const std::string text : {"notes", "71 host\nand more\n", "71st\n", "\n"}) {
    std::ofstream(folder / "lock") << text;
    refused();
    EXPECT_EQ(text_of(folder / "lock"), text);
  }
  std::filesystem::remove(folder / "lock");
  ASSERT_EQ(::mkfifo((folder / "lock").c_str(), 0666), 0);
  refused();
  EXPECT_TRUE(std::filesystem::exists(folder / "lock"));
}

// Like a forked data-loading worker that continues after its parent was killed while holding the
// lock.
TEST(FileLock, AForkedChildDoesNotKeepIt) {
  test::TemporaryFolder folder;
  std::array<int, 2> end{};
  ASSERT_EQ(::pipe(end.data()), 0);
  test::RankProcesses holder(1, [&](int) {
    const FileLock lock(folder / "lock");
    EXPECT_EQ(lock.state(), State::held);
    const pid_t child = ::fork();
    if (child == 0) {
      // signals that the atfork handler has closed the lock
      const std::ofstream told(folder / "forked");
      ::close(end[1]);
      std::byte nothing{};
      (void)!::read(end[0], &nothing, 1);  // blocks until the test ends
      ::_exit(0);
    }
    for (;;) ::pause();
  });
  while (!std::filesystem::exists(folder / "forked")) std::this_thread::yield();
  EXPECT_EQ(FileLock(folder / "lock").state(), State::busy);
  holder.kill(0, SIGKILL);
  (void)holder.wait(0, test::rank_limit);
  EXPECT_EQ(FileLock(folder / "lock").state(), State::held);
  ::close(end[1]);
  ::close(end[0]);
}

TEST(FileLock, TheCopyInAChildLeavesItThere) {
  test::TemporaryFolder folder;
  std::optional<FileLock> lock(std::in_place, folder / "lock");
  test::expect_ranks(1, [&](int) { lock.reset(); });
  EXPECT_TRUE(std::filesystem::exists(folder / "lock"));
  EXPECT_EQ(FileLock(folder / "lock").state(), State::busy);
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

TEST(FileLock, AFilesystemWithoutLocksIsSaid) {
  if (!test::can_deny_calls()) GTEST_SKIP() << test::no_filters;
  test::TemporaryFolder folder;
  test::expect_ranks(1, [&](int) {
    ASSERT_TRUE(test::deny({"flock", SYS_flock, ENOLCK}));
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
