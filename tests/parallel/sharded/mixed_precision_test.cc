// Float shards, a computation in 16 bits: what one process does that keeps float masters.
#include "parallel/sharded/support.h"

namespace lockstep {
namespace {

using namespace test;

torch::nn::Sequential small_model() {
  torch::nn::Sequential model(torch::nn::Linear(6, 9), torch::nn::Linear(9, 4));
  fill_parameters(*model, 3);
  return model;
}

at::Tensor loss_in(torch::nn::Sequential& model, int batch, at::ScalarType dtype) {
  return torch::relu(model->forward(values({5, 6}, batch).to(dtype))).square().sum();
}

// The masters after `steps` steps of one process: gradients of every rank's batch in `dtype`, added
// in float in the tree, divided once, rounded to `reduce`.
std::vector<at::Tensor> one_process(int ranks, int steps, at::ScalarType dtype,
                                    at::ScalarType reduce) {
  at::set_num_threads(1);
  auto model = small_model();
  std::vector<at::Tensor> masters;
  for (auto& parameter : model->parameters())
    masters.push_back(parameter.detach().clone().requires_grad_());
  auto optimizer = momentum()(masters);
  model->to(dtype);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      model->zero_grad();
      loss_in(model, step * ranks + rank, dtype).backward();
      of_ranks.emplace_back();
      for (auto& parameter : model->parameters())
        of_ranks.back().push_back(parameter.grad().to(at::kFloat));
    }
    auto averages = average(of_ranks);
    for (std::size_t i = 0; i < masters.size(); ++i)
      masters[i].mutable_grad() = averages[i].to(reduce).to(at::kFloat);
    optimizer->step();
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i) model->parameters()[i].copy_(masters[i]);
  }
  return masters;
}

class ShardedMixedPrecision : public testing::TestWithParam<at::ScalarType> {};

TEST_P(ShardedMixedPrecision, EqualsOneProcessWithFloatMasters) {
  for (int ranks : {1, 2, 3}) {
    for (at::ScalarType reduce : {at::kFloat, GetParam()}) {
      auto expected = one_process(ranks, 3, GetParam(), reduce);
      for (ShardLevel level : all_levels) {
        run_as_threads(ranks, [&](Group group) {
          auto model = small_model();
          auto sharded = fully_shard(model, group,
                                     {.units = {"*"},
                                      .level = level,
                                      .compute_dtype = GetParam(),
                                      .reduce_dtype = reduce});
          EXPECT_EQ(model->parameters()[0].scalar_type(), GetParam());
          EXPECT_EQ(sharded.parameters()[0].scalar_type(), at::kFloat);
          auto optimizer = momentum()(sharded.parameters());
          for (int step = 0; step < 3; ++step) {
            sharded.zero_grad();
            loss_in(model, step * group.size() + group.rank(), GetParam()).backward();
            optimizer->step();
          }
          auto found = sharded.state_dict();
          auto names = model->named_parameters();
          for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(same_bits(found.at(names[i].key()), expected[i]))
                << names[i].key() << ", " << name_of(level) << ", " << ranks
                << " ranks, reduced in " << c10::toString(reduce);
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ShardedMixedPrecision, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(ShardedMixedPrecisionWrites, KeepTheDigitsOfWhatWasNotWritten) {
  for (ShardLevel level : all_levels)
    run_as_threads(2, [&](Group group) {
      torch::nn::Linear model(3, 4);
      fill_parameters(*model, 3);
      at::Tensor before = model->weight.detach() + 1e-4;
      {
        torch::NoGradGuard no_grad;
        model->weight.copy_(before);
      }
      auto sharded = fully_shard(model, group, {.level = level, .compute_dtype = at::kBFloat16});
      {
        torch::NoGradGuard no_grad;
        model->weight.narrow(0, 1, 1).fill_(0.5);
      }
      at::Tensor expected = before.clone();
      expected[1].fill_(0.5);
      EXPECT_TRUE(same_bits(sharded.state_dict().at("weight"), expected));
    });
}

}  // namespace
}  // namespace lockstep
