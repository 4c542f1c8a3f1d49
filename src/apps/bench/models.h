// The two models of bench/peers/models.py, number for number: the same parameters in the same order
// from the same random numbers, the same batches, the same losses.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace lockstep::apps {

// A model that makes its own batches.
class BenchModel : public torch::nn::Module {
 public:
  // The loss of the next batch, drawn from the default generator.
  virtual at::Tensor loss() = 0;
};

// "mlp" or "gpt"; weights from the default generator.
[[nodiscard]] std::shared_ptr<BenchModel> make_bench_model(const std::string& name);

}  // namespace lockstep::apps
