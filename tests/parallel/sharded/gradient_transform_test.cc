// Loss scaling and clipping of sharded gradients.
#include "parallel/sharded/pair.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>

#include <torch/nn/utils/clip_grad.h>

#include <limits>

namespace lockstep {
namespace {

using namespace test;

class ShardedGradientTransform : public OnEveryLevel {};

TEST_P(ShardedGradientTransform, ValueClippingDoesWhatTorchDoes) {
  run([](Pair& pair, Group) {
    for (auto* net : {&pair.model, &pair.plain})
      ((*net)->forward(Pair::input()).square().sum() * 3).backward();
    pair.sharded->clip_grad_value(0.25);
    torch::nn::utils::clip_grad_value_(pair.plain->parameters(), 0.25);
    expect_same_gradients(pair);
    EXPECT_THROW(pair.sharded->clip_grad_value(-1), InvalidArgument);
  });
}

TEST_P(ShardedGradientTransform, OurOptimizersClipByTheNormOfAllRanks) {
  run([](Pair& pair, Group) {
    for (auto* net : {&pair.model, &pair.plain})
      ((*net)->forward(Pair::input()).square().sum() * 3).backward();
    optim::AdamW ours(pair.sharded->parameters(), torch::optim::AdamWOptions(0.1));
    double expected = torch::nn::utils::clip_grad_norm_(pair.plain->parameters(), 0.5);
    EXPECT_NEAR(optim::clip_grad_norm(pair.sharded->parameters(), 0.5), expected, 1e-5 * expected);
    optim::AdamW theirs(pair.plain->parameters(), torch::optim::AdamWOptions(0.1));
    ours.step();
    theirs.step();
    auto found = pair.sharded->state_dict();
    for (const auto& item : pair.plain->named_parameters())
      EXPECT_TRUE(at::allclose(found.at(item.key()), item.value(), 1e-5, 1e-6)) << item.key();
  });
}

// If the gradient of one rank's shard is not finite, no rank steps.
TEST_P(ShardedGradientTransform, ScaledLossesAreSkippedByAllRanksOrNone) {
  run([](Pair& pair, Group group) {
    optim::GradScaler scaler({.initial_scale = 1024});
    auto ours = momentum()(pair.sharded->parameters());
    auto theirs = momentum()(pair.plain->parameters());
    for (int step = 0; step < 3; ++step) {
      pair.sharded->zero_grad();
      pair.plain->zero_grad();
      scaler.scale(pair.model->forward(Pair::input(step)).square().sum()).backward();
      pair.plain->forward(Pair::input(step)).square().sum().backward();
      bool overflows = step == 1;
      at::Tensor last = pair.sharded->parameters().back();
      if (overflows && group.rank() == group.size() - 1 && last.numel() > 0)
        last.mutable_grad().fill_(std::numeric_limits<float>::infinity());
      EXPECT_EQ(scaler.step(*ours).stepped, !overflows);
      scaler.update();
      if (!overflows) theirs->step();
    }
    EXPECT_EQ(scaler.current_scale(), 512);
    auto found = pair.sharded->state_dict();
    for (const auto& item : pair.plain->named_parameters())
      EXPECT_TRUE(at::allclose(found.at(item.key()), item.value(), 1e-5, 1e-6)) << item.key();
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, ShardedGradientTransform, every_level(), name_of_level);

// float16 with an initial scale that is too large: the scale falls equally on all ranks until steps
// succeed, and the model learns.
TEST(ShardedLossScaling, TrainsInHalfPrecision) {
  run_as_threads(3, [](Group group) {
    torch::nn::Sequential model(torch::nn::Linear(6, 9), torch::nn::Linear(9, 4));
    fill_parameters(*model, 3);
    auto sharded = fully_shard(model, group, {.units = {"*"}, .compute_dtype = at::kHalf});
    auto optimizer = adamw()(sharded.parameters());
    optim::GradScaler scaler;
    double first = 0, last = 0;
    int skipped = 0;
    for (int step = 0; step < 30; ++step) {
      sharded.zero_grad();
      at::Tensor x = values({5, 6}, group.rank()).to(at::kHalf);
      at::Tensor loss = model->forward(x).to(at::kFloat).square().sum();
      scaler.scale(loss).backward();
      if (!scaler.step(*optimizer)) ++skipped;
      scaler.update();
      (step == 0 ? first : last) = loss.item<double>();
    }
    EXPECT_GT(skipped, 0);
    EXPECT_LT(skipped, 20);
    EXPECT_LT(last, 0.5 * first);
  });
}

}  // namespace
}  // namespace lockstep
