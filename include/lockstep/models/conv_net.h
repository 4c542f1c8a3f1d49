// ConvNet: the network of PyTorch's C++ MNIST example (pytorch/examples, cpp/mnist/mnist.cpp), with
// the same parameters.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#pragma GCC visibility push(default)

namespace lockstep::models {

// Maps 1x28x28 images to 10 log-probabilities: two 5x5 convolutions (10 and 20 channels), each with
// 2x2 max pooling, then linear layers 320 -> 50 -> 10. Dropout with p = 0.5 before the second
// pooling and between the linear layers.
class ConvNetImpl : public torch::nn::Module {
 public:
  ConvNetImpl();

  // Maps [rows, 1, 28, 28] to log-probabilities [rows, 10]; use nll_loss for training.
  at::Tensor forward(const at::Tensor& images);

  torch::nn::Conv2d conv1;
  torch::nn::Conv2d conv2;
  torch::nn::Dropout2d conv2_drop;
  torch::nn::Linear fc1;
  torch::nn::Linear fc2;
};
TORCH_MODULE(ConvNet);

}  // namespace lockstep::models

#pragma GCC visibility pop
