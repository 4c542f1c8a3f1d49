// ResNet-18 (He et al., CVPR 2016) with the parameter names of torchvision's resnet18, whose
// state_dict can be loaded.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#pragma GCC visibility push(default)

namespace lockstep::models {

struct ResNetOptions {
  std::int64_t classes = 1000;
  // If true, the first convolution is 3x3 with stride 1 and without pooling, for images of 32x32
  // pixels. If false, it is 7x7 with stride 2, followed by max pooling.
  bool cifar_stem = false;
  std::int64_t width = 64;  // channels of the first stage; they double in each later stage
};

// Two 3x3 convolutions with batch normalisation, and a shortcut around both.
class ResNetBlockImpl : public torch::nn::Module {
 public:
  ResNetBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential downsample{nullptr};  // of the shortcut; null if the shape does not change
};
TORCH_MODULE(ResNetBlock);

// Four stages of two blocks each, initialised like torchvision's: convolutions by He et al. (2015),
// mode fan_out. Throws InvalidArgument for counts below 1.
class ResNet18Impl : public torch::nn::Module {
 public:
  explicit ResNet18Impl(ResNetOptions options = {});

  // Maps [rows, 3, height, width] to logits [rows, classes].
  at::Tensor forward(const at::Tensor& images);

  [[nodiscard]] const ResNetOptions& options() const { return options_; }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;

 private:
  ResNetOptions options_;
};
TORCH_MODULE(ResNet18);

}  // namespace lockstep::models

#pragma GCC visibility pop
