// The optimizer for comparisons with one process over many steps.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::test {

// Not Adam in float: the gradient of a key's bias is only rounding noise, because it cancels in the
// softmax, and Adam would divide it by its own magnitude.
inline std::unique_ptr<torch::optim::Optimizer> parity_optimizer(
    at::ScalarType dtype, std::vector<at::Tensor> parameters) {
  if (dtype == at::kDouble)
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(0.003));
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.03).momentum(0.9));
}

}  // namespace lockstep::test
