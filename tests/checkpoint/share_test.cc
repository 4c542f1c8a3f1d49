#include <lockstep/checkpoint/share.h>

#include <lockstep/comm/local.h>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep::checkpoint {
namespace {

TrainingState example() {
  return {.step = 7,
          .epoch = 2,
          .model = {{"empty", torch::empty({0, 3})},
                    {"w", torch::arange(6, at::kBFloat16).view({2, 3})}},
          .optimizer = {{"optimizer.w.step", torch::tensor(std::int64_t{7})}},
          .random = {torch::arange(5, at::kByte), torch::arange(3, at::kByte)},
          .progress = {{"seconds", "1.5"}},
          .config = {{"lr", "0.1"}}};
}

class Share : public testing::TestWithParam<int> {};

TEST_P(Share, EveryRankGetsTheRootsState) {
  int root = GetParam() - 1;
  run_as_threads(GetParam(), [&](Group group) {
    TrainingState state = share(group, group.is_root(root) ? example() : TrainingState{}, root);
    TrainingState expected = example();
    EXPECT_EQ(state.step, 7);
    EXPECT_EQ(state.epoch, 2);
    EXPECT_EQ(state.progress, expected.progress);
    EXPECT_EQ(state.config, expected.config);
    for (const auto& [name, tensor] : expected.model) {
      EXPECT_EQ(state.model.at(name).scalar_type(), tensor.scalar_type());
      EXPECT_TRUE(at::equal(state.model.at(name), tensor)) << name;
    }
    EXPECT_TRUE(at::equal(state.optimizer.at("optimizer.w.step"),
                          expected.optimizer.at("optimizer.w.step")));
    ASSERT_EQ(state.random.size(), 2u);
    EXPECT_TRUE(at::equal(state.random[1], expected.random[1]));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Share, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace lockstep::checkpoint
