// The module of this rank's parts, of which other ranks have copies or shards.
#pragma once

#include "parallel/tensor/parted_tensor.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

// NAME, and of the further leaves of a fused weight NAME#1, NAME#2.
[[nodiscard]] std::string name_of_leaf(const std::string& name, std::size_t leaf);
// The same under all names of the tensor.
[[nodiscard]] std::vector<std::string> names_of_leaf(const PartedTensor& parted, std::size_t leaf);

// The leaves under all these names, and the buffers.
[[nodiscard]] std::shared_ptr<torch::nn::Module> module_of_parts(
    const std::vector<PartedTensor>& all);

}  // namespace lockstep::tensor_parallel
