// Bit for bit: sharded training at every level gives the losses and parameters of one process that
// computes each rank's micro-batches alone, adds in the tree and divides once.
#include "parallel/sharded/support.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

namespace lockstep {
namespace {

using namespace test;

class ShardedParity : public testing::TestWithParam<Ranks> {};

TEST_P(ShardedParity, EveryLevelEqualsOneProcess) {
  for (const Problem& problem : problems()) {
    History expected = one_process(problem, adamw(), GetParam().size, 4);
    for (ShardLevel level : all_levels)
      run_group(GetParam().engine, GetParam().size, [&](Group group) {
        expect_same_history(expected, problem, group, {.level = level}, adamw());
      });
  }
}

TEST_P(ShardedParity, AccumulatedMicroBatchesToo) {
  Problem problem = problems()[2];
  History expected = one_process(problem, momentum(), GetParam().size, 3, /*parts=*/3);
  for (ShardLevel level : all_levels)
    run_group(GetParam().engine, GetParam().size, [&](Group group) {
      expect_same_history(expected, problem, group, {.level = level}, momentum(), 3);
    });
}

INSTANTIATE_TEST_SUITE_P(Local, ShardedParity,
                         testing::ValuesIn(ranks_of({Engine::local}, {1, 2, 3, 4, 5})),
                         name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Shm, ShardedParity, testing::ValuesIn(ranks_of({Engine::shm}, {2, 3})),
                         name_of_ranks);

// Settings that change when and what is gathered, and never a value.
TEST(ShardedParitySettings, EverySettingGivesTheSame) {
  Problem problem = problems()[2];
  constexpr int ranks = 3;
  History expected = one_process(problem, adamw(), ranks, 4);
  std::vector<ShardOptions> settings;
  for (int prefetch : {0, 1, 3}) settings.push_back({.prefetch = prefetch});
  settings.push_back({.reshard_after_forward = false});
  settings.push_back({.find_unused_parameters = true});
  for (ShardLevel level : all_levels)
    settings.push_back({.level = level, .trigger = shard::TriggerKind::operations});
  for (const ShardOptions& options : settings)
    run_as_threads(ranks, [&](Group group) {
      expect_same_history(expected, problem, group, options, adamw());
    });
  Problem whole = problem;
  for (const std::vector<std::string>& units :
       {std::vector<std::string>{},
        {"transformer.wte", "transformer.h.*"},
        {"transformer.h.*.attn", "transformer.h.*.mlp", "transformer"}}) {
    whole.units = units;
    run_as_threads(ranks,
                   [&](Group group) { expect_same_history(expected, whole, group, {}, adamw()); });
  }
}

// The table of docs/sharding.md: fifty steps of the GPT.
TEST(ShardedParityTable, FiftyStepsOfTheGpt) {
  Problem problem = problems()[2];
  for (int ranks : {1, 2, 3, 4}) {
    History expected = one_process(problem, adamw(), ranks, 50);
    run_as_threads(ranks, [&](Group group) {
      auto model = problem.make();
      fill_parameters(*model, 5);
      DistributedDataParallel ddp(model, group);
      auto optimizer = adamw()(ddp.parameters());
      for (int step = 0; step < 50; ++step) {
        ddp.zero_grad();
        at::Tensor loss = problem.loss(*model, step * ranks + group.rank());
        loss.backward();
        EXPECT_EQ(
            bits_of(loss),
            expected.losses[static_cast<std::size_t>(step)][static_cast<std::size_t>(group.rank())])
            << "ddp, step " << step;
        optimizer->step();
      }
    });
    for (ShardLevel level : all_levels)
      run_as_threads(ranks, [&](Group group) {
        expect_same_history(expected, problem, group, {.level = level}, adamw());
      });
  }
}

}  // namespace
}  // namespace lockstep
