// Activation checkpointing inside units, parts and stages does not change a bit of the results;
// backward repeats the collectives of forward.
#include "parallel/composition.h"

#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace test;

struct Outcome {
  double loss = 0;
  std::vector<at::Tensor> gradients;
  ActivationCheckpoints::Counts counts;
};

// Returns the outcome of the second of two steps: the first one records the results that are used
// outside of blocks.
Outcome outcome_of(Group world, Composition how, double dropout) {
  models::GptOptions options = composed_gpt();
  options.dropout = dropout;
  ComposedGpt composed(made_alike([&] { return models::Gpt(options); }, at::kFloat),
                       std::move(world), how);
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    const TokenBatch batch(step, 8);
    composed.all().zero_grad();
    outcome.loss = composed.step(batch.ids, batch.targets);
  }
  for (const Part& part : composed.all().named_parameters())
    if (part.tensor.grad().defined())
      outcome.gradients.push_back(dispatch::values_of(part.tensor.grad()).clone());
  outcome.counts = composed.all().checkpoints();
  return outcome;
}

class CheckpointedCompositions : public testing::TestWithParam<Composition> {};

TEST_P(CheckpointedCompositions, GradientsHaveTheSameBits) {
  const int ranks = ranks_of(GetParam());
  std::vector<Outcome> plain(static_cast<std::size_t>(ranks)), again = plain;
  for (auto* outcomes : {&plain, &again}) {
    Composition how = GetParam();
    how.checkpoints = outcomes == &again;
    run_group(BackendKind::local, ranks, [&](Group world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      (*outcomes)[rank] = outcome_of(std::move(world), how, 0);
    });
  }
  for (std::size_t rank = 0; rank < plain.size(); ++rank) {
    EXPECT_EQ(plain[rank].loss, again[rank].loss);
    ASSERT_EQ(plain[rank].gradients.size(), again[rank].gradients.size());
    for (std::size_t i = 0; i < plain[rank].gradients.size(); ++i)
      EXPECT_TRUE(same_bits(plain[rank].gradients[i], again[rank].gradients[i])) << i;
    EXPECT_GT(again[rank].counts.recomputations, 0);
    EXPECT_GT(again[rank].counts.released_bytes, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Axes, CheckpointedCompositions,
                         testing::Values(Composition{.axes = {{"dp", 2}}},
                                         Composition{.axes = {{"fsdp", 2}}},
                                         Composition{.axes = {{"tp", 2}}},
                                         Composition{.axes = {{"tp", 2}}, .sequence = true},
                                         Composition{.axes = {{"pp", 2}}},
                                         Composition{.axes = {{"pp", 2}}, .schedule = "zb-h1"},
                                         Composition{.axes = {{"pp", 2}}, .schedule = "zbv"},
                                         Composition{.axes = {{"fsdp", 2}, {"tp", 2}}},
                                         Composition{.axes = {{"pp", 2}, {"fsdp", 2}}},
                                         Composition{.axes = {{"pp", 2}, {"fsdp", 2}, {"tp", 2}}}),
                         [](const auto& info) { return test_name_of(info.param); });

// Returns the collectives of one backward of a GPT with `layers` layers.
Traffic backward_traffic(const Group& group, std::int64_t layers, bool checkpoints) {
  const models::GptOptions options = small_gpt(layers, /*bias=*/false);
  auto model = made_alike([&] { return models::Gpt(options); }, at::kFloat);
  ParallelOptions how;
  if (checkpoints) how.activation_checkpointing = {"transformer.h.*"};
  auto tp = parallelize(model, Mesh(group, {{"tp", group.size()}}), how);
  const Mesh tensors = tensors_of(*model);
  const TokenBatch batch(1);
  at::Tensor loss = model->loss(batch.ids, batch.targets);
  reset_traffic(tensors);
  loss.backward();
  return traffic(tensors);
}

// Without checkpoints, backward has two all_reduces per layer. With checkpoints, it also repeats
// the two of forward, once each.
TEST(CheckpointedTraffic, ABlocksForwardRunsAgain) {
  run_group(BackendKind::local, 2, [](Group group) {
    const auto plain2 = backward_traffic(group, 2, false),
               plain3 = backward_traffic(group, 3, false);
    const auto again2 = backward_traffic(group, 2, true), again3 = backward_traffic(group, 3, true);
    EXPECT_EQ(plain3.all_reduces - plain2.all_reduces, 2);
    EXPECT_EQ(again3.all_reduces - again2.all_reduces, 4);
  });
}

}  // namespace
}  // namespace lockstep
