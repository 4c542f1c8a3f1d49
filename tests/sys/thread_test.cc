#include "sys/thread.h"

#include "sys/own_process.h"

#include "support/messages.h"
#include "support/processes.h"
#include "support/threads.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <stdexcept>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::sys {
namespace {

// A thread that waits until the object is destroyed.
class Waiting {
 public:
  Waiting() : thread_("waiting", [this] { wait(); }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return runs_; });
  }
  ~Waiting() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    runs_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return over_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool runs_ = false;
  bool over_ = false;
  Thread thread_;
};

TEST(LibraryThread, TakesNoSignalAndLeavesThemToItsMaker) {
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  EXPECT_FALSE(sigismember(&before, SIGTERM));
  Waiting waiting;
  EXPECT_GE(test::other_threads(), 1U);  // a sanitizer may have its own thread
  EXPECT_EQ(test::threads_that_take_signals(), std::vector<std::string>());
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_FALSE(sigismember(&after, SIGTERM));
}

TEST(LibraryThread, OfAParentIsNotMissedInAForkedChild) {
  test::expect_ranks(1, [](int) {
    Thread thread("here", [] { ::pause(); });
    pid_t child = ::fork();
    if (child == 0) {
      thread.join();
      { Thread moved = std::move(thread); }
      ::_exit(7);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    EXPECT_TRUE(WIFEXITED(status));
    thread.detach();
  });
}

TEST(LibraryThread, RunsWhatForeignLibrariesStartThreadsIn) {
  sigset_t inside;
  sigemptyset(&inside);
  run_without_signals([&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &inside); });
  EXPECT_TRUE(sigismember(&inside, SIGTERM));
  EXPECT_TRUE(sigismember(&inside, SIGPIPE));
  EXPECT_FALSE(sigismember(&inside, SIGSEGV));
  EXPECT_EQ(test::message_of<std::runtime_error>(
                [] { run_without_signals([] { throw std::runtime_error("from there"); }); }),
            "from there");
}

TEST(ForkAware, IsAnotherOneInAForkedChild) {
  EXPECT_EQ(own_process(), ::getpid());
  ForkAware mine;
  EXPECT_FALSE(mine.is_copy_of_parent());
  test::expect_ranks(2, [&](int) {
    EXPECT_EQ(own_process(), ::getpid());
    EXPECT_TRUE(mine.is_copy_of_parent());
    ForkAware childs;
    EXPECT_FALSE(childs.is_copy_of_parent());
    pid_t grandchild = ::fork();
    if (grandchild == 0)
      ::_exit(childs.is_copy_of_parent() && mine.is_copy_of_parent() && own_process() == ::getpid()
                  ? 0
                  : 1);
    int status = -1;
    EXPECT_EQ(::waitpid(grandchild, &status, 0), grandchild);
    EXPECT_EQ(status, 0);
  });
}

TEST(ForkAware, LeavesTheCopyOfAnObjectAsItIs) {
  // The destructor would wait for a copy of a condition variable on which a thread was waiting.
  auto waiting = make_shared_of_process<Waiting>();
  test::expect_ranks(1, [&](int) { waiting.reset(); });
}

}  // namespace
}  // namespace lockstep::sys
