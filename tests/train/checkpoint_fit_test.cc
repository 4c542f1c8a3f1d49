#include "train/run_folder.h"

#include <lockstep/base/error.h>

#include "train/messages.h"
#include "train/run_setup.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

namespace lockstep::train {
namespace {

checkpoint::TrainingState state_of(const RunSetup& options, int ranks) {
  checkpoint::TrainingState state;
  state.config = Configured(options).all.kept();
  state.ranks = ranks;
  return state;
}

TEST(CheckpointFit, SaysWhatChanged) {
  RunSetup before("gpt");
  before.out = "a";
  before.data = "text.txt";
  const auto state = state_of(before, 2);
  EXPECT_EQ(changes_since(Configured(before).all, 2, state), "");
  RunSetup now = before;
  now.out = "b";
  now.ranks = 7;  // what counts is how many there are
  now.resume = now.allow_other_data = true;
  now.data = std::filesystem::absolute("text.txt");
  EXPECT_EQ(changes_since(Configured(now).all, 2, state), "");
  now.lr = 0.25;
  now.sharding.offload = "/x\n";
  now.mesh = parse_axes("dp=3");
  EXPECT_EQ(changes_since(Configured(now).all, 3, state),
            "lr 0.001 -> 0.25, mesh none -> dp=3, offload none -> /x\\n, ranks 2 -> 3");
}

TEST(CheckpointFit, TheModelStaysWhatItIs) {
  const RunSetup before("gpt");
  const auto state = state_of(before, 1);
  RunSetup now = before;
  now.lr = 1;
  now.dropout = 0.5;
  EXPECT_NO_THROW(check_same_model(Configured(now).all, state));
  for (const char* name : {"layers", "heads", "width", "block"}) {
    Configured other(before);
    other.all.settings().set(name, "12");
    EXPECT_EQ(test::message_of([&] {
                check_same_model(other.all, state);
              }).find(std::string("--resume: ") + name + " is 12, the checkpoint's is "),
              0u);
  }
  EXPECT_THROW(check_same_model(Configured(RunSetup("mnist")).all, state), BadInput);
}

TEST(CheckpointFit, ErrorsOfAFileBeginWithItsName) {
  EXPECT_EQ(test::message_of([] { in_file("out/a", [] { throw BadInput("is bad"); }); }),
            "out/a: is bad");
  EXPECT_THROW(in_file("a", [] { throw SystemError("x", 2); }), SystemError);
}

}  // namespace
}  // namespace lockstep::train
