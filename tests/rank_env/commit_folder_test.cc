// The folder of commits: its last owner removes it, and the next run removes leftovers of other
// runs.
#include "rank_env/commit_folder.h"

#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace lockstep;
using namespace lockstep::rank_env;

namespace {

namespace fs = std::filesystem;

class CommitFolder : public testing::Test {
 protected:
  CommitFolder() { ::setenv("LOCKSTEP_COMMITS", folder_.path().c_str(), 1); }
  ~CommitFolder() override { ::unsetenv("LOCKSTEP_COMMITS"); }

  // Starts a process that lives until `end()`.
  static pid_t begin() {
    const pid_t child = ::fork();
    if (child == 0)
      for (;;) ::pause();
    return child;
  }
  static void end(pid_t process) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }

  test::TemporaryFolder folder_;
};

TEST_F(CommitFolder, IsOneForEachRunAndOfItsUserAlone) {
  make_commit_folder("one", ::getpid());
  make_commit_folder("two", ::getpid());
  EXPECT_NE(commit_folder("one"), commit_folder("two"));
  struct stat found {};
  ASSERT_EQ(::stat(commit_folder("one").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700);
  EXPECT_TRUE(commit_folder("one").string().starts_with(folder_.path().string()));
}

TEST_F(CommitFolder, GoesWithTheLastOfItsOwners) {
  const pid_t other = begin();
  make_commit_folder("run", ::getpid());
  make_commit_folder("run", other);
  std::ofstream(commit_folder("run") / "state") << "state";
  remove_commit_folder("run", ::getpid());
  EXPECT_TRUE(fs::exists(commit_folder("run") / "state"));
  remove_commit_folder("run", other);
  EXPECT_FALSE(fs::exists(commit_folder("run")));
  remove_commit_folder("run", other);
  end(other);
}

TEST_F(CommitFolder, OfOwnersThatHaveEndedGoesWithTheNextRun) {
  const pid_t owner = begin();
  make_commit_folder("old", owner);
  make_commit_folder("new", ::getpid());
  EXPECT_TRUE(fs::exists(commit_folder("old")));
  end(owner);
  make_commit_folder("newer", ::getpid());
  EXPECT_FALSE(fs::exists(commit_folder("old")));
  EXPECT_TRUE(fs::exists(commit_folder("new")));
}

}  // namespace
