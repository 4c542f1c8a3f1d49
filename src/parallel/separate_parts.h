// SeparateParts: the handle of a module whose tensors are divided among several handles, such as a
// stage whose experts are trained apart from its other tensors.
#pragma once

#include "parallel/composite_state.h"

#include <torch/nn/module.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace lockstep::parallel {

class SeparateParts final : public CompositeState {
 public:
  // `handles`: the first one knows all ranks; each knows its tensors by their names in `module`.
  SeparateParts(const torch::nn::Module& module, std::vector<Handle> handles);

  void detach() override;
  // Returns the parts in the order of the module, with all names.
  [[nodiscard]] std::vector<Part> named_parameters() const override;
  [[nodiscard]] std::vector<Part> state_parts() override;
  [[nodiscard]] StepTiming timing() const override { return handles_.front().timing(); }

 private:
  [[nodiscard]] std::vector<Part> in_order(std::vector<Part> parts) const;

  std::vector<Handle> handles_;
  std::vector<std::vector<std::string>> names_;  // of each tensor, in the module's order
  std::map<std::string, std::size_t> place_;     // in names_, by each name
};

// Returns the handle if there is only one; otherwise a handle that combines them.
[[nodiscard]] Handle joined(const torch::nn::Module& module, std::vector<Handle> handles);

}  // namespace lockstep::parallel
