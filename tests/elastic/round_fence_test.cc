// RoundFence lets a single round write into a folder that several hosts share.
#include "elastic/round_fence.h"

#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

namespace lockstep {
namespace {

using test::contains;
using test::message_of;

TEST(RoundFence, KeepsEarlierRoundsOut) {
  const test::TemporaryFolder folder;
  RoundFence third(folder.path(), {"run-a", 3}), fifth(folder.path(), {"run-a", 5});
  EXPECT_FALSE(third.is_of_earlier_round()) << "nobody has it";
  EXPECT_NO_THROW(fifth.check()) << "it writes nothing yet";
  third.take();
  EXPECT_NO_THROW(third.check());
  EXPECT_TRUE(fifth.is_of_earlier_round());
  fifth.take();
  EXPECT_NO_THROW(fifth.check());
  EXPECT_TRUE(contains(message_of<PeerLost>([&] { third.check(); }),
                       "expected round 3 of run run-a, which this process belongs to, found round "
                       "5 of run run-a; it writes nothing there any more"));
  EXPECT_TRUE(contains(message_of<PeerLost>([&] { third.take(); }),
                       "round 5 of this run writes here; this is round 3"));
  EXPECT_NO_THROW(fifth.check());
}

TEST(RoundFence, IsNotThatOfAnotherRun) {
  const test::TemporaryFolder folder;
  RoundFence before(folder.path(), {"run-a", 7}), after(folder.path(), {"run-b", 0});
  before.take();
  EXPECT_FALSE(after.is_of_earlier_round()) << "its lock is another run's";
  after.take();
  EXPECT_TRUE(
      contains(message_of<PeerLost>([&] { before.check(); }), "found round 0 of run run-b"));
}

TEST(RoundFence, OfWhichTheFileIsGoneOrSomethingElseLetsNobodyWrite) {
  const test::TemporaryFolder folder;
  RoundFence fence(folder.path(), {"run", 1});
  fence.take();
  std::ofstream(folder / ".round") << "not a round";
  EXPECT_TRUE(contains(message_of<PeerLost>([&] { fence.check(); }), "found no round"));
  std::filesystem::remove(folder / ".round");
  EXPECT_THROW(fence.check(), PeerLost);
  EXPECT_NO_THROW(fence.take()) << "the next round begins anew";
}

// Mounts a small filesystem that only this process can access. Returns false if mounting is not
// permitted.
bool mount_disk_of_a_run(const std::filesystem::path& point) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return ::mount("tmpfs", point.c_str(), "tmpfs", 0, "size=64k") == 0;
}

TEST(RoundFence, IsTakenOnAFullDisk) {
  const test::TemporaryFolder folder;
  constexpr int not_allowed = 77;
  const auto results = test::run_ranks(1, [&](int) {
    if (!mount_disk_of_a_run(folder.path())) ::_exit(not_allowed);
    std::filesystem::create_directory(folder / "new");
    RoundFence ninth(folder.path(), {"run-a", 9}), tenth(folder.path(), {"run-a", 10});
    RoundFence of_other_run(folder.path(), {"b", 0}), first(folder / "new", {"run-a", 9});
    ninth.take();
    {
      std::ofstream filler(folder / "filler");
      while (filler << std::string(100, 'x') << std::flush) {
      }
    }
    tenth.take();
    EXPECT_NO_THROW(tenth.check());
    EXPECT_THROW(ninth.check(), PeerLost);
    of_other_run.take();
    EXPECT_NO_THROW(of_other_run.check()) << "the shorter text has replaced the longer one";
    EXPECT_THROW(first.take(), SystemError) << "there is no file to overwrite";
  });
  if (results[0].exit_code == not_allowed)
    GTEST_SKIP() << "this process may not mount a small filesystem";
  EXPECT_TRUE(results[0].ok()) << results[0];
}

}  // namespace
}  // namespace lockstep
