// The module of this rank's parts, of which other ranks have copies or shards.
#pragma once

#include <lockstep/dispatch/part.h>

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

// Returns NAME for the first leaf of a tensor; NAME#1, NAME#2 for the others of a fused weight.
[[nodiscard]] std::string name_of_leaf(const std::string& name, std::size_t leaf);
// Returns the leaf's name for each name of the tensor.
[[nodiscard]] std::vector<std::string> names_of_leaf(const Part& part, std::size_t leaf);

// Returns a module with the tensors of the parts under all their names. Parts of one tensor follow
// each other.
[[nodiscard]] std::shared_ptr<torch::nn::Module> module_of_parts(const std::vector<Part>& all);

}  // namespace lockstep::tensor_parallel
