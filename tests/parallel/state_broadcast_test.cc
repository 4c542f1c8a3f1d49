#include "parallel/bucket.h"

#include "parallel/support.h"

namespace lockstep {
namespace {

using namespace test;

// Two alternating dtypes, an empty tensor, a scalar, and a non-contiguous tensor.
std::vector<at::Tensor> state(int seed) {
  return {values({7, 3}, seed),         at::full({}, seed, at::kLong), values({0}, seed),
          values({4, 5}, seed + 1).t(), at::arange(9) * (seed + 1),    values({33}, seed + 2)};
}

void expect_state_of_root(const std::vector<at::Tensor>& tensors, int seed) {
  auto expected = state(seed);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(same_bits(tensors[i], expected[i])) << "tensor " << i;
}

class StateBroadcast : public testing::TestWithParam<EngineRanks> {};

TEST_P(StateBroadcast, GivesEveryRankTheValuesOfRankZero) {
  for (std::int64_t bucket_bytes : {1, 100, 1 << 20}) {
    run_group(GetParam().engine, GetParam().size, [&](Group group) {
      auto tensors = state(group.rank());
      parallel::broadcast_now(group, tensors, bucket_bytes);
      expect_state_of_root(tensors, 0);
      parallel::broadcast_now(group, {}, bucket_bytes);
    });
  }
}

TEST_P(StateBroadcast, SendsWhatRankZeroHasAtEachPost) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    auto tensors = state(group.rank());
    parallel::StateBroadcast broadcast(group, tensors);
    for (int round = 0; round < 3; ++round) {
      auto now = state(10 * round + group.rank());
      for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(now[i]);
      broadcast.post(std::nullopt);
      broadcast.finish();
      expect_state_of_root(tensors, 10 * round);
    }
  });
}

TEST_P(StateBroadcast, FollowsAChangeOfDtype) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    at::Tensor tensor = at::full({3}, group.rank());
    parallel::StateBroadcast broadcast(group, {tensor});
    tensor.set_data(at::full({5}, group.rank() + 0.1, at::kDouble));
    broadcast.post(std::nullopt);
    broadcast.finish();
    EXPECT_TRUE(same_bits(tensor, at::full({5}, 0.1, at::kDouble)));
  });
}

TEST_P(StateBroadcast, LeavesVersionsAlone) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    at::Tensor tensor = at::full({3}, group.rank());
    auto version = tensor._version();
    parallel::StateBroadcast broadcast(group, {tensor});
    broadcast.post(std::nullopt);
    broadcast.finish();
    EXPECT_EQ(tensor._version(), version);
  });
}

INSTANTIATE_TEST_SUITE_P(All, StateBroadcast, testing::ValuesIn(usual_ranks()), name_of_ranks);

}  // namespace
}  // namespace lockstep
