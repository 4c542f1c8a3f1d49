// The tensors of a module that a handle takes care of.
#pragma once

#include "layout/flat_layout.h"

#include <lockstep/layout/tensor_slice.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/module/state_dict.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::modules {

struct ModuleTensors {
  std::vector<NamedParameter> parameters;  // each once, in the module's order
  std::vector<NamedTensor> buffers;        // each once, under its first name
  std::vector<at::Tensor> ignored;         // both kinds

  [[nodiscard]] std::vector<at::Tensor> buffer_tensors() const;
};

// `ignored`: patterns of names of tensors, or of modules (lockstep/layout/name_pattern.h). A tensor
// that one of them names by any of its names is left out. InvalidArgument for a pattern that names
// nothing.
[[nodiscard]] ModuleTensors tensors_of(const torch::nn::Module& module,
                                       std::span<const std::string> ignored = {});

// Returns the names of a tensor, the first one first.
[[nodiscard]] std::vector<std::string> names_of(const NamedParameter& parameter);

// Returns named_tensors() of the module, without detaching them.
[[nodiscard]] std::vector<NamedTensor> own_tensors(const torch::nn::Module& module);
// Returns the module's parameters and buffers, each once with all names that it has in files, in
// the order of Python's state_dict(). The name that a tensor is registered under comes first.
[[nodiscard]] std::vector<NamedParameter> state_entries(const torch::nn::Module& module);

// Returns the tensor that `tensors` have for these names and sizes. Throws BadInput if the tensor
// is missing, has other sizes, or differs from name to name.
[[nodiscard]] at::Tensor values_for(std::span<const std::string> names, at::IntArrayRef sizes,
                                    const std::map<std::string, at::Tensor>& tensors);

// Returns true if a pattern matches one of the parameter's names.
[[nodiscard]] bool is_ignored(const NamedParameter& parameter,
                              std::span<const std::string> ignored);

// InvalidArgument in one line for a parameter that no optimizer can train.
void check_leaf(const std::string& name, const at::Tensor& tensor, std::string_view strategy);

// InvalidArgument in one line for the first tensor that ranks cannot be given, or that cannot be
// trained. The same on every rank where check_same_lines() has found no difference.
void check_ordinary(const ModuleTensors& tensors, std::string_view strategy);

// The same for tensors that would come apart, or be left behind with old values, where parameters
// get another memory.
void check_alone(const ModuleTensors& tensors, std::string_view strategy);

// One line for each parameter whose memory is held by something outside the module.
[[nodiscard]] std::vector<std::string> lines_of_held(const ModuleTensors& tensors);

// Descriptions of tensors for the arithmetic of layouts, which does not depend on LibTorch.
[[nodiscard]] layout::Dtype spec_of(c10::ScalarType dtype);
[[nodiscard]] layout::TensorSpec spec_of(const NamedParameter& parameter);

// "Float on cpu": what tensors have in common that may lie in one storage.
[[nodiscard]] std::string kind_of(const at::Tensor& tensor);

// How the elements of a dense tensor lie in memory; empty: row-major.
[[nodiscard]] std::vector<int> dim_order_of(at::IntArrayRef sizes, at::IntArrayRef strides);

// A box of a slice, as a view of the tensor of one dimension that holds the slice's elements, and
// as a view of the whole.
[[nodiscard]] at::Tensor box_in_part(const at::Tensor& part, const layout::TensorSlice& slice,
                                     const layout::Box& box);
[[nodiscard]] at::Tensor box_in_whole(const at::Tensor& whole, const layout::Box& box);

}  // namespace lockstep::modules
