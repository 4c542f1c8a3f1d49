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
