// The bytes that a rank holds, measured by a counter, compared with the formulas of ShardLevel.
#include "parallel/sharded/support.h"

#include <lockstep/optim/adamw.h>

namespace lockstep {
namespace {

using namespace test;

constexpr std::int64_t width = 48;
constexpr std::int64_t block =
    width * width;  // parameters; a multiple of 1, 2, 3 and 4 cache lines
constexpr std::int64_t blocks = 4;

torch::nn::Sequential square_layers() {
  torch::nn::Sequential model;
  for (int i = 0; i < blocks; ++i)
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
  fill_parameters(*model, 3);
  return model;
}

void take_step(torch::nn::Sequential& model, ShardedModule& sharded,
               at::ScalarType dtype = at::kFloat) {
  sharded.zero_grad();
  model->forward(values({2, width}, 1).to(dtype)).square().sum().backward();
}

class ShardedMemoryCount : public testing::TestWithParam<int> {};

// fp32: parameters and gradients take 8; 4 + 4/N; 8/N bytes per parameter, and Adam's state 8/N.
TEST_P(ShardedMemoryCount, IsTheFormulaOfEachLevel) {
  int ranks = GetParam();
  constexpr std::int64_t count = blocks * block;
  for (ShardLevel level : all_levels)
    run_as_threads(ranks, [&](Group group) {
      auto model = square_layers();
      auto sharded = fully_shard(model, group, {.units = {"*"}, .level = level});
      for (int step = 0; step < 3; ++step) take_step(model, sharded);
      std::int64_t expected = level == ShardLevel::optimizer   ? 8 * count
                              : level == ShardLevel::gradients ? 4 * count + 4 * count / ranks
                                                               : 8 * count / ranks;
      EXPECT_EQ(sharded.memory().kept(), expected) << name_of(level);
      EXPECT_EQ(sharded.memory().in_flight, 0) << name_of(level);
    });
}

// Bytes of the optimizer's state for this rank's slices.
std::int64_t state_bytes(const optim::AdamW& adamw) {
  std::size_t bytes = 0;
  for (const auto& [parameter, kept] : adamw.state()) {
    const auto& state = dynamic_cast<const optim::AdamWState&>(*kept);
    bytes += state.exp_avg().nbytes() + state.exp_avg_sq().nbytes();
    if (state.master_parameter.defined()) bytes += state.master_parameter.nbytes();
  }
  return static_cast<std::int64_t>(bytes);
}

// With 16-bit computation: 4 + 12/N; 2 + 14/N; 16/N bytes per parameter, whether the float32
// masters belong to the optimizer or are the shards (which need no second copy in 16 bits at level
// full).
TEST_P(ShardedMemoryCount, InSixteenBitsIsTheFormulaOfEachLevel) {
  int ranks = GetParam();
  constexpr std::int64_t count = blocks * block;
  for (bool mixed : {false, true})
    for (ShardLevel level : all_levels)
      run_as_threads(ranks, [&](Group group) {
        auto model = square_layers();
        ShardOptions options{.units = {"*"}, .level = level};
        if (mixed)
          options.compute_dtype = at::kBFloat16;
        else
          model->to(at::kBFloat16);
        auto sharded = fully_shard(model, group, options);
        optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.01));
        for (int step = 0; step < 3; ++step) {
          take_step(model, sharded, at::kBFloat16);
          adamw.step();
        }
        std::int64_t of_shard = level == ShardLevel::optimizer   ? 12
                                : level == ShardLevel::gradients ? 14
                                : mixed                          ? 14
                                                                 : 16;
        std::int64_t of_whole = level == ShardLevel::optimizer   ? 4
                                : level == ShardLevel::gradients ? 2
                                                                 : 0;
        EXPECT_EQ(sharded.memory().kept() + state_bytes(adamw),
                  of_whole * count + of_shard * count / ranks)
            << name_of(level) << ", mixed " << mixed;
        EXPECT_EQ(sharded.memory().in_flight, 0) << name_of(level);
      });
}

// LibTorch's kernels need gradients of the parameter's dtype.
TEST_P(ShardedMemoryCount, TorchsOptimizersTakeGradientsInFloatBesides) {
  int ranks = GetParam();
  constexpr std::int64_t count = blocks * block;
  for (ShardLevel level : all_levels)
    run_as_threads(ranks, [&](Group group) {
      auto model = square_layers();
      auto sharded = fully_shard(model, group,
                                 {.units = {"*"}, .level = level, .compute_dtype = at::kBFloat16});
      torch::optim::AdamW adamw(sharded.parameters());
      std::int64_t at_rest = sharded.memory().kept();
      take_step(model, sharded, at::kBFloat16);
      std::int64_t before = sharded.memory().kept();
      adamw.step();
      EXPECT_EQ(sharded.memory().kept() - before, 4 * count / ranks) << name_of(level);
      sharded.zero_grad();
      if (level != ShardLevel::optimizer) EXPECT_EQ(sharded.memory().kept(), at_rest);
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedMemoryCount, testing::Values(1, 2, 3, 4));

TEST(ShardedMemoryInFlight, IsTheUnitsInUseAndOneAhead) {
  for (int prefetch : {0, 1, 2})
    run_as_threads(2, [&](Group group) {
      auto model = square_layers();
      auto sharded = fully_shard(model, group, {.units = {"*"}, .prefetch = prefetch});
      take_step(model, sharded);
      sharded.reset_peak_memory();
      torch::nn::Sequential& net = model;
      at::Tensor output = net->forward(values({2, width}, 1));
      EXPECT_EQ(sharded.memory().peak_in_flight, 4 * block * (1 + prefetch));
      output.square().sum().backward();
      auto memory = sharded.memory();
      EXPECT_EQ(memory.in_flight, 0);
      // Plus the gradients of three units: one that fills and two that are being reduced.
      EXPECT_LE(memory.peak_in_flight, 4 * block * (1 + prefetch + 3));
      EXPECT_LE(memory.pooled, memory.peak_in_flight);
    });
}

TEST(ShardedMemoryInFlight, EachUnitStaysOrGoesAfterForwardAsItsRuleSays) {
  run_as_threads(2, [](Group group) {
    auto model = square_layers();
    auto sharded = fully_shard(
        model, group,
        {.units = {{"0", false}, {"2", true}, "*"}, .reshard_after_forward = true, .prefetch = 0});
    at::Tensor output = model->forward(values({2, width}, 1));
    EXPECT_EQ(sharded.memory().in_flight, 2 * 4 * block);  // the first is kept, the last in use
    output.sum().backward();
    EXPECT_EQ(sharded.memory().in_flight, 0);
  });
}

TEST(ShardedMemoryInFlight, GradientsKeptByNoSyncCount) {
  run_as_threads(2, [](Group group) {
    auto model = square_layers();
    auto sharded = fully_shard(model, group, {.units = {"*"}});
    EXPECT_EQ(sharded.memory().gradients, 0);
    {
      auto scope = sharded.no_sync();
      take_step(model, sharded);
    }
    EXPECT_EQ(sharded.memory().gradients, 4 * blocks * block);
    sharded.zero_grad();
    EXPECT_EQ(sharded.memory().gradients, 0);
  });
}

}  // namespace
}  // namespace lockstep
