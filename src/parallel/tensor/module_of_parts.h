// The module that another strategy trains under tensor parallelism: this rank's parts.
#pragma once

#include "parallel/tensor/parted_tensor.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

// The name of the tensor; of the further leaves of a fused weight NAME#1, NAME#2.
[[nodiscard]] std::string name_of_leaf(const PartedTensor& parted, std::size_t leaf);

// The leaves under these names, and the buffers.
[[nodiscard]] std::shared_ptr<torch::nn::Module> module_of_parts(
    const std::vector<PartedTensor>& all);

}  // namespace lockstep::tensor_parallel
