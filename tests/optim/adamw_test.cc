// torch::optim::AdamW is the oracle: equal numbers up to rounding, equal state, equal archives.
#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>

#include "optim/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

namespace lockstep::optim {
namespace {

using test::copies_of;
using test::most_ulps;
using test::set_gradients;
using test::some_parameters;
using test::ulps_between;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::OptimizerParamGroup;

AdamWParamState& state_of(torch::optim::AdamW& optimizer, const at::Tensor& parameter) {
  return test::state_of<AdamWParamState>(optimizer, parameter);
}

TEST(AdamW, TakesGroupsAndSkipsUndefinedGradients) {
  auto mine = some_parameters(), theirs = copies_of(mine);
  auto groups = [](std::vector<at::Tensor>& p) {
    std::vector<OptimizerParamGroup> list;
    list.emplace_back(std::vector<at::Tensor>{p[0], p[1]},
                      std::make_unique<AdamWOptions>(AdamWOptions(1e-2).weight_decay(0.3)));
    list.emplace_back(std::vector<at::Tensor>{p[3], p[4]},
                      std::make_unique<AdamWOptions>(AdamWOptions(1e-4).weight_decay(0)));
    return list;
  };
  AdamW ours(groups(mine));
  torch::optim::AdamW oracle(groups(theirs));
  at::Tensor before = mine[1].detach().clone();
  for (int step = 0; step < 20; ++step) {
    set_gradients(mine, theirs);
    mine[1].mutable_grad().reset();
    theirs[1].mutable_grad().reset();
    if (step < 7)
      // This parameter has had fewer updates than its group.
      mine[4].mutable_grad().reset(), theirs[4].mutable_grad().reset();
    ours.step();
    oracle.step();
  }
  EXPECT_TRUE(at::equal(mine[1], before));
  EXPECT_EQ(ours.state().count(mine[1].unsafeGetTensorImpl()), 0U);
  EXPECT_EQ(state_of(ours, mine[4]).step(), 13);
  for (std::size_t i : {0, 3, 4}) EXPECT_LE(ulps_between(mine[i], theirs[i]), most_ulps) << i;
}

TEST(AdamW, FollowsTheLayoutOfParametersAndGradients) {
  torch::manual_seed(4);
  auto away_from_zero = [](std::vector<std::int64_t> sizes) { return torch::randn(sizes) + 5; };
  std::vector<at::Tensor> mine = {
      away_from_zero({6, 5}).t().requires_grad_(),
      away_from_zero({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(),
      away_from_zero({4, 10}).slice(1, 0, 10, 2).requires_grad_()};
  auto theirs = copies_of(mine);
  AdamW ours(mine, AdamWOptions(1e-2));
  torch::optim::AdamW oracle(theirs, AdamWOptions(1e-2));
  for (int step = 0; step < 10; ++step) {
    set_gradients(mine, theirs);  // contiguous, unlike the parameters
    ours.step();
    oracle.step();
  }
  for (std::size_t i = 0; i < mine.size(); ++i)
    EXPECT_LE(ulps_between(mine[i], theirs[i]), most_ulps) << i;
}

TEST(AdamW, TakesDoubleAndFloatTogether) {
  std::vector<at::Tensor> mine = {torch::ones({3}).requires_grad_(),
                                  torch::ones({3}, at::kDouble).requires_grad_()};
  auto theirs = copies_of(mine);
  AdamW ours(mine, AdamWOptions(1e-2));
  torch::optim::AdamW oracle(theirs, AdamWOptions(1e-2));
  for (int step = 0; step < 10; ++step) {
    set_gradients(mine, theirs);
    ours.step();
    oracle.step();
  }
  EXPECT_LE(ulps_between(mine[0], theirs[0]), most_ulps);
  EXPECT_TRUE(at::allclose(mine[1], theirs[1], 1e-14, 0));
}

TEST(AdamW, ArchivesGoBothWays) {
  auto mine = some_parameters(), theirs = copies_of(mine);
  AdamW ours(mine, AdamWOptions(1e-2).amsgrad(true));
  torch::optim::AdamW oracle(theirs, AdamWOptions(1e-2).amsgrad(true));
  auto together = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      set_gradients(mine, theirs);
      ours.step();
      oracle.step();
    }
  };
  together(5);
  std::stringstream from_ours, from_oracle;
  torch::save(ours, from_ours);
  torch::save(oracle, from_oracle);
  torch::load(ours, from_oracle);
  torch::load(oracle, from_ours);
  EXPECT_EQ(state_of(ours, mine[0]).step(), 5);
  together(5);
  EXPECT_EQ(state_of(oracle, theirs[0]).step(), 10);
  for (std::size_t i = 0; i < mine.size(); ++i)
    EXPECT_LE(ulps_between(mine[i], theirs[i]), most_ulps) << i;
}

TEST(AdamW, CallsTheClosureWithGradients) {
  at::Tensor parameter = torch::ones({2}).requires_grad_();
  AdamW adamw({parameter}, AdamWOptions(0.1).weight_decay(0));
  at::Tensor loss = adamw.step([&] {
    adamw.zero_grad();
    at::Tensor value = parameter.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 2);
  EXPECT_NEAR(parameter[0].item<float>(), 0.9, 1e-6);
}

TEST(AdamW, NamesASparseGradientBeforeAnythingIsUpdated) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  at::Tensor other = torch::ones({2}).requires_grad_();
  AdamW adamw(std::vector<at::Tensor>{other, table->weight}, AdamWOptions(0.1));
  (table(at::arange(2)).sum() + other.sum()).backward();
  try {
    adamw.step();
    FAIL() << "a sparse gradient was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("parameter 1 of group 0 has a sparse gradient"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(at::equal(other, at::ones({2})));
}

}  // namespace
}  // namespace lockstep::optim
