// The folder of a run, when a round of an elastic run ends while it opens it.
#include "train/run_folder.h"

#include "support/temporary_folder.h"
#include "train/run_setup.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

namespace lockstep::train {
namespace {

// What is called ends the round: nothing that makes the folder look like another run's is there.
TEST(RunFolder, IsTakenBeforeAnythingIsInIt) {
  const test::TemporaryFolder folder;
  RunSetup setup("mlp");
  setup.out = folder / "out";
  Configured configured{setup};
  {
    RunFolder first(configured.all);
    (void)first.find_checkpoint();
    EXPECT_THROW(first.open(0, false, [] { throw std::runtime_error("a lost rank"); }),
                 std::runtime_error);
    EXPECT_FALSE(std::filesystem::exists(folder / "out/metrics.jsonl"));
  }
  RunFolder next(configured.all);
  EXPECT_FALSE(next.find_checkpoint());
  bool is_taken = false;
  next.open(0, false, [&] { is_taken = true; });
  EXPECT_TRUE(is_taken);
  EXPECT_TRUE(std::filesystem::exists(folder / "out/metrics.jsonl"));
}

// Rank 0 of an earlier round is on a host that was cut off: it holds the lock, and writes no more.
TEST(RunFolder, IsTakenOverFromAnEarlierRoundThatStillHoldsTheLock) {
  const test::TemporaryFolder folder;
  RunSetup setup("mlp");
  setup.out = folder / "out";
  Configured configured{setup};
  RunFolder cut_off(configured.all, RoundOfRun{"run", 0});
  EXPECT_FALSE(cut_off.find_checkpoint());
  cut_off.open(0);
  cut_off.append({.step = 1});
  RunFolder other(configured.all, RoundOfRun{"another", 5});
  EXPECT_THROW((void)other.newest_checkpoint(), BadInput) << "it is at work";
  RunFolder next(configured.all, RoundOfRun{"run", 2});
  EXPECT_FALSE(next.newest_checkpoint());
  EXPECT_THROW(cut_off.append({.step = 2}), PeerLost);
  EXPECT_THROW(cut_off.write_result("done"), PeerLost);
  EXPECT_THROW(cut_off.check(), PeerLost);
  next.open(1, true);
  next.append({.step = 2});
  const auto notices = next.take_notices();
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("of an earlier round of this run, still holds the lock"),
            std::string::npos);
}

// The folder of another run is never taken.
TEST(RunFolder, OfAnotherRunIsNotTaken) {
  const test::TemporaryFolder folder;
  RunSetup setup("mlp");
  setup.out = folder / "out";
  Configured configured{setup};
  RunFolder(configured.all).open(0);
  RunFolder second(configured.all);
  EXPECT_THROW(second.open(0, false, [] { FAIL() << "it was taken"; }), BadInput);
}

}  // namespace
}  // namespace lockstep::train
