// The optimizer with which trainings are compared over many steps with those of one process.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::test {

// In float not Adam: it divides the gradient of a key's bias, which is rounding alone (softmax
// takes it away), by its size.
inline std::unique_ptr<torch::optim::Optimizer> parity_optimizer(
    at::ScalarType dtype, std::vector<at::Tensor> parameters) {
  if (dtype == at::kDouble)
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(0.003));
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.03).momentum(0.9));
}

}  // namespace lockstep::test
