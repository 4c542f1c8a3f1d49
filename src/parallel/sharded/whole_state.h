// A module's tensors under all their names, when the module itself holds no values.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::sharded {

// Under the names of models/names.h: for a parameter, `values` of its TensorImpl; buffers copied.
[[nodiscard]] std::map<std::string, at::Tensor> named_values(
    const torch::nn::Module& module, const std::map<const void*, at::Tensor>& values);

// What loading writes into one of the module's tensors.
struct Assignment {
  at::Tensor tensor;  // the module's
  at::Tensor values;
};

// One for each tensor of the module. A tied one may come under any of its names. BadInput names the
// first tensor that is missing, unknown, of another shape, or tied and unequal.
[[nodiscard]] std::vector<Assignment> assignments_of(
    const torch::nn::Module& module, const std::map<std::string, at::Tensor>& tensors);

}  // namespace lockstep::sharded
