// Sharded training at every level gives bitwise the losses and parameters of one process that
// computes each rank's micro-batches separately, sums in the order of the tree and divides once.
#include "parallel/sharded/support.h"

namespace lockstep {
namespace {

using namespace test;

class ShardedParity : public testing::TestWithParam<BackendRanks> {};

TEST_P(ShardedParity, EveryLevelEqualsOneProcess) {
  for (const Problem& problem : problems()) {
    History expected = one_process(problem, adamw(), GetParam().size, 4);
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      for (ShardLevel level : all_levels)
        for (ShardStorage storage : all_storages)
          expect_same_history(expected, problem, group, {.level = level, .storage = storage},
                              adamw());
    });
  }
}

TEST_P(ShardedParity, AccumulatedMicroBatchesToo) {
  Problem problem = problems()[2];
  History expected = one_process(problem, momentum(), GetParam().size, 3, /*parts=*/3);
  run_group(GetParam().backend, GetParam().size, [&](Group group) {
    for (ShardLevel level : all_levels)
      for (ShardStorage storage : all_storages)
        expect_same_history(expected, problem, group, {.level = level, .storage = storage},
                            momentum(), 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Local, ShardedParity,
                         testing::ValuesIn(ranks_of({BackendKind::local}, {1, 2, 5})),
                         name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Shm, ShardedParity,
                         testing::ValuesIn(ranks_of({BackendKind::shm}, {3, 4})), name_of_ranks);

class ShardedParitySettings : public testing::TestWithParam<BackendKind> {};

// These settings change when parameters are gathered and how many, but not their values.
TEST_P(ShardedParitySettings, EverySettingGivesTheSame) {
  Problem problem = problems()[2];
  constexpr int ranks = 3;
  History expected = one_process(problem, adamw(), ranks, 4);
  std::vector<ShardOptions> settings;
  for (int prefetch : {0, 1, 3}) settings.push_back({.prefetch = prefetch});
  settings.push_back({.reshard_after_forward = false});
  settings.push_back({.find_unused_parameters = true});
  for (const ShardOptions& options : settings)
    run_group(GetParam(), ranks, [&](Group group) {
      expect_same_history(expected, problem, group, options, adamw());
    });
  Problem whole = problem;
  for (const std::vector<std::string>& units :
       {std::vector<std::string>{},
        {"transformer.wte", "transformer.h.*"},
        {"transformer.h.*.attn", "transformer.h.*.mlp", "transformer"}}) {
    whole.units = units;
    run_group(GetParam(), ranks,
              [&](Group group) { expect_same_history(expected, whole, group, {}, adamw()); });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ShardedParitySettings,
                         testing::Values(BackendKind::local, BackendKind::shm),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace lockstep
