// The module that another strategy trains under tensor parallelism: this rank's parts.
#pragma once

#include "parallel/tensor/parted_tensor.h"

#include <torch/nn/module.h>

#include <memory>
#include <vector>

namespace lockstep::tensor_parallel {

// The leaves under the names of the tensors, the further ones of a fused weight as NAME#1, NAME#2;
// and the buffers.
[[nodiscard]] std::shared_ptr<torch::nn::Module> module_of_parts(
    const std::vector<PartedTensor>& all);

}  // namespace lockstep::tensor_parallel
