// The parameters of a module, each tensor once.
//
// LibTorch lists a tied weight under each of its names, and an optimizer built on that list steps
// it twice. All code of Lockstep that flattens parameters or reduces their gradients starts from
// this list instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

struct NamedParameter {
  std::string name;                  // the first of its names: "fc1.weight"
  at::Tensor tensor;                 // the module's own
  std::vector<std::string> aliases;  // its other names
};

// Returns the parameters in the order of module.named_parameters(). Tensors with the same
// TensorImpl count as one.
[[nodiscard]] std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module);

}  // namespace lockstep

#pragma GCC visibility pop
