// Ranks of tensor parallelism with different plans, options or batches get a Mismatch.
#include <lockstep/parallel/parallelize.h>

#include "parallel/tensor/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace test;

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl()
      : up(register_module("up", torch::nn::Linear(6, 12))),
        down(register_module("down", torch::nn::Linear(12, 6))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(TwoLayers);

ParallelPlan parallel_plan(const TwoLayers& /*model*/) {
  return {.tensor = {{"up", Colwise()}, {"down", Rowwise()}}};
}

ParallelModel cut_layers(const TwoLayers& model, const Group& ranks, ParallelOptions options = {}) {
  return parallelize(model, Mesh(ranks, {{"tp", ranks.size()}}), std::move(options));
}

class TensorRefuses : public BackendTest {};

TEST_P(TensorRefuses, RanksWithDifferentPlansAreAMismatch) {
  run([&](Group group) {
    TwoLayers model;
    const TensorPlan plan = group.rank() == 1 ? TensorPlan{{"up", Colwise()}} : TensorPlan();
    expect_contains(message_of<Mismatch>([&] { (void)cut_layers(model, group, {.tensor = plan}); }),
                    "plan down: Rowwise");
    EXPECT_TRUE(cut_layers(model, group).is_attached());
  });
}

// Their collectives would not match.
TEST_P(TensorRefuses, RanksWithDifferentOptionsAreAMismatch) {
  run([&](Group group) {
    TwoLayers model;
    const bool other = group.rank() == 1;
    const auto message = [&](const ParallelOptions& options) {
      return message_of<Mismatch>([&] { (void)cut_layers(model, group, options); });
    };
    expect_contains(message({.sequence_parallel = other}), "sequence_parallel = true");
    expect_contains(message({.sequence_parallel = true, .sequence_dim = other ? 0 : 1}),
                    "sequence_dim = 0");
    expect_contains(message({.sequence_parallel = true, .sequence_dim = other ? 2 : 1}),
                    "sequence_dim = 2");
    EXPECT_TRUE(cut_layers(model, group).is_attached());
  });
}

// Without this check nothing would fail: each rank's shard of the model would learn from a
// different batch.
TEST_P(TensorRefuses, RanksWithDifferentBatchesAreAMismatch) {
  run([&](Group group) {
    TwoLayers model;
    auto tp = cut_layers(model, group);
    auto step = [&](int seed) {
      tp.zero_grad();
      model->forward(values({4, 6}, seed)).square().mean().backward();
    };
    for (int i = 0; i < 3; ++i) step(i);
    const std::string text = message_of<Mismatch>([&] { step(3 + group.rank()); });
    expect_contains(text, "a plain Float tensor of sizes [4, 6] counts as replicated");
    expect_contains(text, "found different ones on rank 1 and on rank 0");
    EXPECT_EQ(text.find('\n'), std::string::npos);
  });
}

TEST_P(TensorRefuses, RanksOfOneSequenceWithDifferentBatchesAreAMismatch) {
  run([&](Group group) {
    auto gpt = made_alike([] { return models::Gpt(small_gpt()); }, at::kFloat);
    auto cp = parallelize(gpt, Mesh(group, {{"cp", 2}}));
    const auto step = [&](int seed) {
      const TokenBatch batch(seed);
      const Tensors cut = cp.cut({batch.ids, batch.targets});
      gpt->loss(cut[0], cut[1]).backward();
    };
    step(1);
    expect_contains(message_of<Mismatch>([&] { step(2 + group.rank()); }),
                    "a plain Long tensor of sizes [4, 13] counts as replicated");
  });
}

// A difference that appears only in a later call is also detected.
TEST_P(TensorRefuses, BatchesThatPartLaterAreAMismatch) {
  run([&](Group group) {
    torch::nn::Embedding table(37, 12);
    auto tp = parallelize(table, Mesh(group, {{"tp", 2}}), {.tensor = {{"weight", Vocabulary()}}});
    const auto steps = [&] {
      for (int i = 0; i < 2000; ++i)
        (void)table->forward(torch::tensor({3, i % 37, i > 700 && group.rank() == 1 ? 5 : 4}));
    };
    expect_contains(message_of<Mismatch>(steps), "a plain Long tensor of sizes [3]");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, TensorRefuses, every_backend({2}), backend_test_name);

}  // namespace
}  // namespace lockstep
