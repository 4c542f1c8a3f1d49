#include <lockstep/optim/decay.h>

#include <lockstep/optim/adamw.h>

#include <gtest/gtest.h>

#include <string>

namespace lockstep::optim {
namespace {

struct Whole {
  std::string name;
  at::Tensor tensor;
};

double decay_of(torch::optim::OptimizerParamGroup& group) {
  return dynamic_cast<torch::optim::AdamWOptions&>(group.options()).weight_decay();
}

TEST(DecayGroups, AreMatricesAndTheOthers) {
  std::vector<Whole> parameters;
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{3, 2}, {3}, {4, 1, 2, 2}, {}})
    parameters.push_back({"", at::ones(sizes).requires_grad_()});
  auto groups = decay_groups(parameters, torch::optim::AdamWOptions(0.01).weight_decay(7), 0.25);
  ASSERT_EQ(groups.size(), 2U);
  ASSERT_EQ(groups[0].params().size(), 2U);
  ASSERT_EQ(groups[1].params().size(), 2U);
  EXPECT_TRUE(groups[0].params()[1].is_same(parameters[2].tensor));
  EXPECT_TRUE(groups[1].params()[0].is_same(parameters[1].tensor));
  EXPECT_EQ(decay_of(groups[0]), 0.25);
  EXPECT_EQ(decay_of(groups[1]), 0);
  AdamW adamw(groups);
  for (const Whole& one : parameters) one.tensor.mutable_grad() = at::zeros_like(one.tensor);
  adamw.step();
  EXPECT_LT(parameters[0].tensor[0][0].item<float>(), 1);
  EXPECT_EQ(parameters[1].tensor[0].item<float>(), 1);
}

}  // namespace
}  // namespace lockstep::optim
