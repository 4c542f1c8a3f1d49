#include <lockstep/models/conv_net.h>

#include <gtest/gtest.h>
#include <torch/utils.h>

namespace lockstep::models {
namespace {

TEST(ConvNet, GivesLogarithmsOfProbabilities) {
  ConvNet model;
  const at::Tensor output = model->forward(at::randn({3, 1, 28, 28}));
  EXPECT_EQ(output.sizes(), (std::vector<std::int64_t>{3, 10}));
  EXPECT_TRUE(output.exp().sum(1).allclose(at::ones({3})));
}

TEST(ConvNet, DropoutActsInTrainingOnly) {
  torch::manual_seed(6);
  ConvNet model;
  const at::Tensor images = at::randn({3, 1, 28, 28});
  EXPECT_FALSE(model->forward(images).equal(model->forward(images)));
  model->eval();
  EXPECT_TRUE(model->forward(images).equal(model->forward(images)));
}

}  // namespace
}  // namespace lockstep::models
