#include <lockstep/models/mlp.h>

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

namespace lockstep::models {
namespace {

TEST(Mlp, NamesAndShapes) {
  Mlp model(MlpOptions{.sizes = {6, 4, 3}});
  std::string text;
  for (const auto& item : model->named_parameters())
    text += c10::str(item.key(), item.value().sizes(), " ");
  EXPECT_EQ(text, "layers.0.weight[4, 6] layers.0.bias[4] layers.1.weight[3, 4] layers.1.bias[3] ");
  EXPECT_EQ(model->forward(at::randn({5, 2, 3})).sizes(), (std::vector<std::int64_t>{5, 3}));
  EXPECT_EQ(model->forward(at::randn({0, 6})).sizes(), (std::vector<std::int64_t>{0, 3}));
}

TEST(Mlp, WithoutBias) {
  Mlp model(MlpOptions{.sizes = {6, 4}, .bias = false});
  ASSERT_EQ(model->parameters().size(), 1u);
  EXPECT_TRUE(model->forward(at::zeros({1, 6})).equal(at::zeros({1, 4})));
}

TEST(Mlp, TheLastLayerHasNoRelu) {
  Mlp model(MlpOptions{.sizes = {3, 2}});
  at::Tensor x = at::randn({4, 3});
  const auto weights = model->parameters();
  EXPECT_TRUE(model->forward(x).allclose(at::linear(x, weights[0], weights[1])));
}

TEST(Mlp, RefusesFewerThanTwoSizes) {
  for (const MlpOptions& options :
       {MlpOptions{}, MlpOptions{.sizes = {3}}, MlpOptions{.sizes = {3, 0, 2}}}) {
    EXPECT_THROW(Mlp model(options), InvalidArgument);
  }
}

}  // namespace
}  // namespace lockstep::models
