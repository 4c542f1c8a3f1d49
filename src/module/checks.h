// Checks of a module: do all ranks hold the same model, which memory do its tensors share, and has
// it changed since a handle was made?
#pragma once

#include "module/tensors.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::modules {

// One line for each parameter and buffer: name, dtype, sizes, ties, whether it requires a gradient,
// and what it shares memory with.
[[nodiscard]] std::vector<std::string> lines_of(const ModuleTensors& tensors);

// Collective: every rank passes one line for each thing that must be equal, in order ("parameter
// fc1.weight: Float [3, 4]"). Exchanges a fingerprint, and the lines themselves only when
// fingerprints differ. Throws Mismatch with the first difference, both ranks and both lines, on
// every rank alike; the group lives on.
void check_same_lines(const Group& group, const std::vector<std::string>& lines,
                      const CallOptions& call = {});

// A view without the repetitions that expand() makes: dims of stride 0 have one element.
[[nodiscard]] at::Tensor without_repetitions(const at::Tensor& tensor);

// Whether two elements of it are one place in memory.
[[nodiscard]] bool repeats_elements(const at::Tensor& tensor);

// For each tensor the first one before it that has a place in memory in common with it. The same
// tensor twice has nothing in common with itself.
[[nodiscard]] std::vector<std::optional<std::size_t>> first_sharing(
    std::span<const at::Tensor> tensors);

// Whether something beside these tensors holds the storage of `tensor`, which is one of them: a
// view, or the graph of an operation that made one.
[[nodiscard]] bool is_held_elsewhere(const at::Tensor& tensor, std::span<const at::Tensor> tensors);

// ModuleWatch: notices parameters that a handle does not know.
//
// A module may get parameters after its handle was made, or train what was frozen then. Nobody
// would reduce their gradients, so each rank would train its own.
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
