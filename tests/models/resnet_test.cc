#include <lockstep/models/resnet.h>

#include <lockstep/base/error.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/module/state_dict.h>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace lockstep::models {
namespace {

std::int64_t count_of(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

// The parameter count and names in torchvision's documentation of resnet18.
TEST(ResNet18, HasTorchvisionsParameters) {
  ResNet18 model;
  EXPECT_EQ(count_of(*model), 11'689'512);
  std::set<std::string> names;
  for (const auto& item : named_tensors(*model)) names.insert(item.name);
  EXPECT_EQ(names.size(), 122u);
  for (const char* name :
       {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer1.1.bn2.bias",
        "layer2.0.downsample.0.weight", "layer2.0.downsample.1.num_batches_tracked",
        "layer4.1.conv2.weight", "fc.weight", "fc.bias"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(names.contains("layer1.0.downsample.0.weight"));
  EXPECT_EQ(count_of(*ResNet18(ResNetOptions{.classes = 10, .cifar_stem = true})), 11'173'962);
}

TEST(ResNet18, GivesLogitsOfImagesOfAnySize) {
  ResNet18 model(ResNetOptions{.classes = 10, .cifar_stem = true, .width = 4});
  model->eval();
  EXPECT_EQ(model->forward(at::randn({2, 3, 32, 32})).sizes(), (std::vector<std::int64_t>{2, 10}));
  ResNet18 large(ResNetOptions{.classes = 5, .width = 4});
  large->eval();
  EXPECT_EQ(large->forward(at::randn({1, 3, 75, 50})).sizes(), (std::vector<std::int64_t>{1, 5}));
  EXPECT_THROW(ResNet18(ResNetOptions{.classes = 0}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::models
