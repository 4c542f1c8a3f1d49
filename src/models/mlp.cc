#include <lockstep/models/mlp.h>

#include <lockstep/base/error.h>

#include <torch/nn/modules/linear.h>

namespace lockstep::models {
namespace {

void check(const MlpOptions& options) {
  bool positive = true;
  for (std::int64_t size : options.sizes) positive = positive && size > 0;
  if (options.sizes.size() < 2 || !positive) {
    throw InvalidArgument(c10::str("Mlp: expected at least two positive sizes, found [",
                                   at::IntArrayRef(options.sizes), "]"));
  }
}

}  // namespace

MlpImpl::MlpImpl(MlpOptions options) : options_(std::move(options)) {
  check(options_);
  register_module("layers", layers);
  for (std::size_t i = 0; i + 1 < options_.sizes.size(); ++i) {
    layers->push_back(torch::nn::Linear(
        torch::nn::LinearOptions(options_.sizes[i], options_.sizes[i + 1]).bias(options_.bias)));
  }
}

at::Tensor MlpImpl::forward(const at::Tensor& input) {
  at::Tensor x = input.flatten(1);
  for (std::size_t i = 0; i < layers->size(); ++i) {
    if (i > 0) x = at::relu(x);
    x = layers[i]->as<torch::nn::LinearImpl>()->forward(x);
  }
  return x;
}

}  // namespace lockstep::models
