// Helpers for the tests of communication hooks: a float64 model whose gradients the tests compute
// by hand, and steps with it.
#pragma once

#include "parallel/support.h"

#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::test {

// One parameter of each given shape. The loss is the sum of the products of the parameters with the
// wanted gradients.
struct TableImpl : torch::nn::Module {
  TableImpl(const std::vector<std::vector<std::int64_t>>& shapes, at::ScalarType dtype) {
    std::int64_t seed = 1;
    for (const auto& shape : shapes)
      weights.push_back(register_parameter("w" + std::to_string(weights.size()),
                                           values(shape, seed++).to(dtype)));
  }
  at::Tensor loss(const std::vector<at::Tensor>& gradients) const {
    at::Tensor sum;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      at::Tensor term = (weights[i] * gradients[i]).sum();
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};
struct Table : torch::nn::ModuleHolder<TableImpl> {
  Table(std::vector<std::vector<std::int64_t>> shapes, at::ScalarType dtype)
      : ModuleHolder(std::make_shared<TableImpl>(std::move(shapes), dtype)) {}
};

// Returns a rank's gradients in a step.
inline std::vector<at::Tensor> gradients_for(const TableImpl& table, int rank, int step) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& weight : table.weights)
    gradients.push_back(
        values(weight.sizes(), 100 * step + 10 * rank + static_cast<std::int64_t>(gradients.size()))
            .to(weight.scalar_type()));
  return gradients;
}

inline void backward(const DistributedDataParallel& ddp, const TableImpl& table, int step) {
  table.loss(gradients_for(table, ddp.group().rank(), step)).backward();
}

// Returns the bytes that this rank sends for an all_reduce of so many numbers (GroupTraffic).
inline std::int64_t bytes_of_sum(const Group& group, std::int64_t numbers, std::int64_t of_number) {
  const std::int64_t share =
      numbers / group.size() + (group.rank() < numbers % group.size() ? 1 : 0);
  return (numbers - share + share * (group.size() - 1)) * of_number;
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace lockstep::test
