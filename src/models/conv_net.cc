#include <lockstep/models/conv_net.h>

namespace lockstep::models {

ConvNetImpl::ConvNetImpl()
    : conv1(torch::nn::Conv2dOptions(1, 10, /*kernel_size=*/5)),
      conv2(torch::nn::Conv2dOptions(10, 20, /*kernel_size=*/5)),
      fc1(320, 50),
      fc2(50, 10) {
  register_module("conv1", conv1);
  register_module("conv2", conv2);
  register_module("conv2_drop", conv2_drop);
  register_module("fc1", fc1);
  register_module("fc2", fc2);
}

at::Tensor ConvNetImpl::forward(const at::Tensor& images) {
  at::Tensor x = at::relu(at::max_pool2d(conv1->forward(images), 2));
  x = at::relu(at::max_pool2d(conv2_drop->forward(conv2->forward(x)), 2));
  x = at::relu(fc1->forward(x.view({-1, 320})));
  x = at::dropout(x, /*p=*/0.5, is_training());
  return at::log_softmax(fc2->forward(x), /*dim=*/1);
}

}  // namespace lockstep::models
