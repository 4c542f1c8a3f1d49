// RoundFence lets a single round write into a folder that several hosts share.
#include "elastic/round_fence.h"

#include "support/messages.h"
#include "support/temporary_folder.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

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

}  // namespace
}  // namespace lockstep
