#include "train/checkpoint_fit.h"

#include <lockstep/base/error.h>

#include "train/messages.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

namespace lockstep::train {
namespace {

checkpoint::TrainingState state_of(const Options& options, int ranks) {
  checkpoint::TrainingState state;
  state.config = kept_options(options);
  state.ranks = ranks;
  return state;
}

TEST(CheckpointFit, SaysWhatChanged) {
  Options before = default_options("gpt");
  before.out = "a";
  before.data = "text.txt";
  const auto state = state_of(before, 2);
  EXPECT_EQ(changes_since(before, 2, state), "");
  Options now = before;
  now.out = "b";
  now.ranks = 7;  // what counts is how many there are
  now.resume = now.allow_other_data = true;
  now.data = std::filesystem::absolute("text.txt");
  EXPECT_EQ(changes_since(now, 2, state), "");
  now.lr = 0.25;
  now.offload = "/x\n";
  EXPECT_EQ(changes_since(now, 3, state), "lr 0.001 -> 0.25, offload none -> /x\\n, ranks 2 -> 3");
}

TEST(CheckpointFit, TheModelStaysWhatItIs) {
  const Options before = default_options("gpt");
  const auto state = state_of(before, 1);
  Options now = before;
  now.lr = 1;
  now.dropout = 0.5;
  EXPECT_NO_THROW(check_same_model(now, state));
  for (const char* name : {"layers", "heads", "width", "block"}) {
    now = before;
    set_option(now, option_row(name, "gpt"), "12");
    EXPECT_EQ(test::message_of([&] {
                check_same_model(now, state);
              }).find(std::string("--resume: ") + name + " is 12, the checkpoint's is "),
              0u);
  }
  EXPECT_THROW(check_same_model(default_options("mnist"), state), BadInput);
}

TEST(CheckpointFit, ErrorsOfAFileBeginWithItsName) {
  EXPECT_EQ(test::message_of([] { in_file("out/a", [] { throw BadInput("is bad"); }); }),
            "out/a: is bad");
  EXPECT_THROW(in_file("a", [] { throw SystemError("x", 2); }), SystemError);
}

}  // namespace
}  // namespace lockstep::train
