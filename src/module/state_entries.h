// A module's parameters and buffers, each tensor once, with all names that it has in files.
#pragma once

#include <lockstep/module/state_dict.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace lockstep::modules {

// What named_tensors() lists, as the module's own tensors.
[[nodiscard]] std::vector<NamedTensor> own_tensors(const torch::nn::Module& module);

struct StateEntry {
  std::vector<std::string> names;  // the one that it is registered under comes first
  at::Tensor tensor;               // the module's own
};

// In the order of their first names in Python's state_dict().
[[nodiscard]] std::vector<StateEntry> state_entries(const torch::nn::Module& module);

// What `tensors` have for a tensor of these names and sizes. BadInput when that is nothing, is of
// another shape, or differs from name to name.
[[nodiscard]] at::Tensor values_for(std::span<const std::string> names, at::IntArrayRef sizes,
                                    const std::map<std::string, at::Tensor>& tensors);

// What loading writes into one of the module's tensors.
struct Assignment {
  at::Tensor tensor;  // the module's own
  at::Tensor values;  // of its sizes; perhaps of another dtype or device
};

// One for each entry. BadInput names the first tensor that is missing, unknown, of another shape,
// or tied and unequal.
[[nodiscard]] std::vector<Assignment> assignments_of(
    const torch::nn::Module& module, const std::map<std::string, at::Tensor>& tensors);

}  // namespace lockstep::modules
