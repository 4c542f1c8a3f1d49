// The tensors of a module that a handle takes care of.
#pragma once

#include "layout/flat_layout.h"

#include <lockstep/layout/tensor_slice.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/module/state_dict.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
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
  std::vector<at::Tensor> ignored;         // parameters and buffers

  [[nodiscard]] std::vector<at::Tensor> buffer_tensors() const;
};

// `ignored`: patterns of names of tensors, or of modules (lockstep/layout/name_pattern.h). Leaves
// out every tensor with a name that matches one of these patterns. Throws InvalidArgument if a
// pattern matches nothing.
[[nodiscard]] ModuleTensors tensors_of(const torch::nn::Module& module,
                                       std::span<const std::string> ignored = {});

// Returns the buffers in the order of module.named_buffers(), as unique_parameters() does.
[[nodiscard]] std::vector<NamedParameter> unique_buffers(const torch::nn::Module& module);

// Returns the names of a tensor, the first one first.
[[nodiscard]] std::vector<std::string> names_of(const NamedParameter& parameter);

// Register something under a path such as "layer.0.weight"; make the modules around it that are
// missing.
void add_module(torch::nn::Module& all, const std::string& path,
                std::shared_ptr<torch::nn::Module> module);
void add_parameter(torch::nn::Module& all, const std::string& path, const at::Tensor& tensor);
void add_buffer(torch::nn::Module& all, const std::string& path, const at::Tensor& tensor);

// Returns named_tensors() of the module, without detaching them.
[[nodiscard]] std::vector<NamedTensor> own_tensors(const torch::nn::Module& module);
// Returns the module's parameters and buffers, each once with all names that it has in files, in
// the order of Python's state_dict(). The name that a tensor is registered under comes first.
[[nodiscard]] std::vector<NamedParameter> state_entries(const torch::nn::Module& module);

// Returns the tensor that `tensors` have for these names and sizes. Throws BadInput if the tensor
// is missing, has other sizes, or differs from name to name.
[[nodiscard]] at::Tensor values_for(std::span<const std::string> names, at::IntArrayRef sizes,
                                    const std::map<std::string, at::Tensor>& tensors);

// Returns true if two tensors of one dtype and the same sizes have equal elements. A NaN equals a
// NaN, unlike in at::equal().
[[nodiscard]] bool have_equal_values(const at::Tensor& one, const at::Tensor& other);

// Returns true if a pattern matches one of the parameter's names.
[[nodiscard]] bool is_ignored(const NamedParameter& parameter,
                              std::span<const std::string> ignored);

// Throws InvalidArgument for a parameter that no optimizer can train.
void check_leaf(const std::string& name, const at::Tensor& tensor, std::string_view strategy);

// Returns true if backward() sets .grad of a buffer. A buffer that was computed from parameters
// requires a gradient, too, but passes it on to them.
[[nodiscard]] bool gets_gradient(const at::Tensor& buffer);

// Throws InvalidArgument for a buffer that gets_gradient(): strategies reduce those of parameters.
void check_buffer(const std::string& name, const at::Tensor& buffer, std::string_view strategy);

// Throws InvalidArgument for the first tensor that cannot be sent to other ranks or cannot be
// trained. If check_same_lines() has passed, all ranks throw the same error or none does.
void check_ordinary(const ModuleTensors& tensors, std::string_view strategy);

// Throws InvalidArgument for tensors that share memory: giving parameters new memory would separate
// them, or leave old values in one of them.
void check_alone(const ModuleTensors& tensors, std::string_view strategy);

// Returns one line for each parameter whose memory is held by something outside the module.
[[nodiscard]] std::vector<std::string> lines_of_held(const ModuleTensors& tensors);

// Descriptions of tensors for the arithmetic of layouts, which does not depend on LibTorch.
[[nodiscard]] layout::Dtype spec_of(c10::ScalarType dtype);
[[nodiscard]] layout::TensorSpec spec_of(const NamedParameter& parameter);

// Returns dtype and device, such as "Float on cpu". Tensors in one storage must agree in them.
[[nodiscard]] std::string kind_of(const at::Tensor& tensor);

// How the elements of a dense tensor lie in memory; empty: row-major.
[[nodiscard]] std::vector<int> dim_order_of(at::IntArrayRef sizes, at::IntArrayRef strides);

// box_in_part() views a box in the 1-D tensor that stores a slice; box_in_whole() views the same
// box in the whole tensor.
[[nodiscard]] at::Tensor box_in_part(const at::Tensor& part, const layout::TensorSlice& slice,
                                     const layout::Box& box);
[[nodiscard]] at::Tensor box_in_whole(const at::Tensor& whole, const layout::Box& box);

}  // namespace lockstep::modules
