// Helpers for the tests of node-shared storage: a pair of layers, slow ranks, and our AdamW.
#pragma once

#include "parallel/sharded/pair.h"

#include <lockstep/optim/adamw.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::test {

inline ShardOptions shared(ShardOptions options = {}) {
  options.storage = ShardStorage::node_shared;
  return options;
}

// Delays the backward through `tensor` if `slow`.
inline at::Tensor delayed_backward(const at::Tensor& tensor, bool slow) {
  if (slow)
    tensor.register_hook(
        [](const at::Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  return tensor;
}

inline at::Tensor loss_of(torch::nn::Sequential& net, int batch, bool slow = false) {
  auto layer = [&](int i) { return net[i]->as<torch::nn::Linear>(); };
  at::Tensor middle = torch::gelu(layer(0)->forward(Pair::input(batch)));
  return layer(1)->forward(delayed_backward(middle, slow)).square().sum();
}

inline MakeOptimizer our_adamw() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_unique<optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
  };
}

}  // namespace lockstep::test
