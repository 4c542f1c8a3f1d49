// Mlp: linear layers with ReLU between them.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::models {

struct MlpOptions {
  // Sizes of input, hidden layers and output: {784, 256, 10} is two layers. At least two sizes, all
  // positive.
  std::vector<std::int64_t> sizes;
  bool bias = true;
};

// Parameters are named layers.0.weight, layers.0.bias, layers.1.weight, ... and initialised like
// torch::nn::Linear.
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(MlpOptions options);

  // Maps `input` ([rows, ...] with sizes.front() elements per row) to [rows, sizes.back()]. No ReLU
  // after the last layer.
  at::Tensor forward(const at::Tensor& input);

  [[nodiscard]] const MlpOptions& options() const { return options_; }

  torch::nn::ModuleList layers;

 private:
  MlpOptions options_;
};
TORCH_MODULE(Mlp);

}  // namespace lockstep::models

#pragma GCC visibility pop
