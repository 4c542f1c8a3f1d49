#include <lockstep/models/resnet.h>

#include "base/check.h"

#include <torch/nn/init.h>

namespace lockstep::models {
namespace {

const ResNetOptions& checked(const ResNetOptions& options) {
  lockstep::check(options.classes >= 1 && options.width >= 1,
                  "ResNet18: expected at least 1 class and width 1, found {} and {}",
                  options.classes, options.width);
  return options;
}

torch::nn::Conv2dOptions convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                     std::int64_t stride) {
  return torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false);
}

torch::nn::Sequential stage(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return torch::nn::Sequential(ResNetBlock(in, out, stride), ResNetBlock(out, out, 1));
}

}  // namespace

ResNetBlockImpl::ResNetBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
    : conv1(convolution(in, out, 3, stride)),
      bn1(out),
      conv2(convolution(out, out, 3, 1)),
      bn2(out) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  register_module("conv2", conv2);
  register_module("bn2", bn2);
  if (stride == 1 && in == out) return;
  downsample = torch::nn::Sequential(torch::nn::Conv2d(convolution(in, out, 1, stride)),
                                     torch::nn::BatchNorm2d(out));
  register_module("downsample", downsample);
}

at::Tensor ResNetBlockImpl::forward(const at::Tensor& x) {
  at::Tensor y = at::relu(bn1->forward(conv1->forward(x)));
  y = bn2->forward(conv2->forward(y));
  return at::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
}

ResNet18Impl::ResNet18Impl(ResNetOptions options)
    : conv1(checked(options).cifar_stem ? convolution(3, options.width, 3, 1)
                                        : convolution(3, options.width, 7, 2)),
      bn1(options.width),
      layer1(stage(options.width, options.width, 1)),
      layer2(stage(options.width, 2 * options.width, 2)),
      layer3(stage(2 * options.width, 4 * options.width, 2)),
      layer4(stage(4 * options.width, 8 * options.width, 2)),
      fc(8 * options.width, options.classes),
      options_(options) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  register_module("layer1", layer1);
  register_module("layer2", layer2);
  register_module("layer3", layer3);
  register_module("layer4", layer4);
  register_module("fc", fc);
  for (const auto& module : modules(/*include_self=*/false))
    if (auto* of_images = module->as<torch::nn::Conv2dImpl>())
      torch::nn::init::kaiming_normal_(of_images->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
}

at::Tensor ResNet18Impl::forward(const at::Tensor& images) {
  at::Tensor x = at::relu(bn1->forward(conv1->forward(images)));
  if (!options_.cifar_stem) x = at::max_pool2d(x, 3, /*stride=*/2, /*padding=*/1);
  x = layer4->forward(layer3->forward(layer2->forward(layer1->forward(x))));
  return fc->forward(x.mean({2, 3}));
}

}  // namespace lockstep::models
