#include <lockstep/store/file_store.h>

#include "base/scope_exit.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <future>
#include <list>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(FileStore, ProcessesMeet) {
  for (int ranks : {2, 3, 5}) {
    test::TemporaryFolder folder;
    test::expect_ranks(ranks, [&](int rank) {
      FileStore store(folder / "store");
      store.set("rank/" + std::to_string(rank), std::to_string(::getpid()));
      for (int peer = 0; peer < ranks; ++peer) {
        EXPECT_FALSE(store.get("rank/" + std::to_string(peer), Deadline::after(20s)).empty());
      }
      for (int i = 0; i < 20; ++i) store.add("count", 1);
      store.add("done", 1);
      while (store.get("done", Deadline::after(20s)) != std::to_string(ranks)) ::usleep(1000);
      EXPECT_EQ(store.get("count", Deadline::after(20s)), std::to_string(20 * ranks));
    });
  }
}

TEST(FileStore, ARankKilledAtAnyPointHarmsNobody) {
  test::TemporaryFolder folder;
  FileStore store(folder.path());
  store.set("key", std::string(20'000, 'a'));
  for (int attempt = 0; attempt < 10; ++attempt) {
    test::RankProcesses ranks(1, [&](int) {
      FileStore own(folder.path());
      for (int i = 0;; ++i) own.set("key", std::string(20'000, static_cast<char>('a' + i % 26)));
    });
    ::usleep(3000 + 777 * attempt);
    ranks.kill(0, SIGKILL);
    EXPECT_EQ(ranks.wait(0, 10s).signal, SIGKILL);
    std::string value = store.get("key", Deadline::after(1s));
    EXPECT_EQ(value, std::string(20'000, value.at(0)));
    EXPECT_EQ(store.keys(""), std::vector<std::string>{"key"});
    store.set("key", value);
  }
}

TEST(FileStore, ALockThatIsNeverReleasedIsATimeout) {
  test::TemporaryFolder folder;
  FileStore store(folder.path(), {.lock_timeout = 30ms});
  int file = ::open((folder / "lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(file, LOCK_EX), 0);
  EXPECT_THROW(store.set("key", "value"), Timeout);
  ::close(file);
  store.set("key", "value");
  EXPECT_EQ(store.try_get("key"), "value");
}

// Each child begins while another thread of the parent opens, holds or releases the lock.
TEST(FileStore, ForkedChildrenDoNotKeepItsLock) {
  test::TemporaryFolder folder;
  FileStore store(folder.path(), {.lock_timeout = 500ms});
  std::atomic<bool> is_over = false;
  auto writing = std::async(std::launch::async, [&] {
    while (!is_over) store.set("key", "value");
  });
  const ScopeExit ends_writing([&] { is_over = true; });
  std::list<test::RankProcesses> children;
  for (int i = 0; i < 50; ++i) {
    children.emplace_back(1, [](int) {
      for (;;) ::pause();
    });
    std::this_thread::sleep_for(2ms);
  }
  is_over = true;
  EXPECT_NO_THROW(writing.get());
  store.set("key", "last");
  EXPECT_EQ(store.try_get("key"), "last");
}

TEST(FileStore, AFolderThatCannotBeMadeIsNamed) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  try {
    FileStore store(folder / "file/store");
    FAIL() << "no exception";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("file/store"), std::string::npos) << error.what();
  }
}

TEST(FileStore, AForeignFileIsNamed) {
  test::TemporaryFolder folder;
  FileStore store(folder.path());
  std::ofstream(folder / "x.value") << "9 short";
  EXPECT_THROW((void)store.keys(""), BadInput);
}

}  // namespace
}  // namespace lockstep
