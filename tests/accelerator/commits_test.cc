// Commits of an elastic run on the simulated accelerator: a round that restores a commit gives the
// same bits as a run that was never interrupted. Ranks are threads, so a round ends without a loss.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/local.h>

#include "accelerator/small_training.h"
#include "elastic/commits.h"
#include "support/accelerator/expectations.h"
#include "support/temporary_folder.h"

#include <ATen/ops/full.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <filesystem>
#include <optional>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

namespace fs = std::filesystem;

constexpr int steps_of_round = 3;

// The program of one round: restores the newest commit, trains and commits after each step. All
// ranks train on the same rows, so the average does not depend on their number.
Values round_of(const Level& level, const Group& group, c10::Device device, const fs::path& folder,
                std::int64_t round) {
  auto model = model_on(device);
  Handle handle = handle_of(level, model, group);
  torch::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.01));
  Commits commits(group, folder, round);
  checkpoint::TrainingState state;
  if (const fs::path newest = commits.newest(); !newest.empty())
    state = checkpoint::load(newest, handle, adamw);
  EXPECT_EQ(state.step, steps_of_round * round);
  at::Tensor own = at::full({4}, static_cast<double>(round), at::TensorOptions(device));
  for (int i = 0; i < steps_of_round; ++i) {
    handle.zero_grad();
    loss_of(model, static_cast<int>(state.step++)).backward();
    adamw.step();
    EXPECT_FALSE(commits.commit({.handle = handle,
                                 .optimizer = adamw,
                                 .state = state,
                                 .options = {},
                                 .own = {{"own", own}}},
                                /*leaves=*/false));
    EXPECT_TRUE(commits.are_kept());
  }
  return on_cpu(handle);
}

class CommitsOfDevices : public AcceleratorTest, public testing::WithParamInterface<Level> {};

// Rounds of 2, 4 and 2 ranks: averages of equal numbers are exact.
TEST_P(CommitsOfDevices, LetTheNextRoundGoOn) {
  const test::TemporaryFolder of_cpu;
  Values expected;
  for (int round = 0; round < 3; ++round)
    run_as_threads(1, [&](const Group& group) {
      expected = round_of(std::nullopt, group, c10::kCPU, of_cpu.path(), round);
    });
  const test::TemporaryFolder folder;
  for (int round = 0; round < 3; ++round) {
    const bool is_last = round == 2;
    run_ranks(round == 1 ? 4 : 2, [&](const Group& group, c10::Device device) {
      const auto found = round_of(GetParam(), group, device, folder.path(), round);
      if (is_last) expect_equal(found, expected);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(OnDevices, CommitsOfDevices, testing::ValuesIn(all_levels), name_of_level);

}  // namespace
