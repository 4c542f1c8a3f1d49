// ModuleWatch: notices parameters that a handle does not know.
//
// A module may get parameters after its handle was made, or train what was frozen then. Nobody
// would reduce their gradients, so each rank would train its own.
#pragma once

#include "module/tensors.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::modules {

class ModuleWatch {
 public:
  // `ignored` as the handle was given them; the module outlives this object. `made`: "since
  // fully_shard() was called", for the messages.
  ModuleWatch(const torch::nn::Module& module, std::vector<std::string> ignored, std::string made);

  // InvalidArgument names the first such parameter. Local; takes about a microsecond for ten
  // parameters as long as nothing has changed.
  void check() const;

 private:
  using Trains = std::pair<const at::TensorImpl*, bool>;

  [[nodiscard]] bool is_as_made() const;
  [[noreturn]] void refuse(const NamedParameter& parameter, const char* what) const;

  const torch::nn::Module& module_;
  std::vector<std::string> ignored_;
  std::string made_;
  std::vector<Trains> as_made_;    // in the order of the modules, tied ones more than once
  std::vector<at::Tensor> known_;  // keeps those tensors
};

}  // namespace lockstep::modules
