// PartsHandle: a Handle on tensors that it does not own, for what is saved and loaded through
// one (lockstep/checkpoint/checkpoint.h).
#pragma once

#include "parallel/whole_module_state.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/handle.h>

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

using PartsHandle = parallel::PlainHandle;

// `trained`: what an optimizer updates on this rank; `all`: these and the others that this rank
// saves.
[[nodiscard]] inline std::shared_ptr<parallel::WholeModuleState> parts_state(
    Group group, std::vector<NamedPart> trained, std::vector<NamedPart> all) {
  return std::make_shared<parallel::WholeModuleState>(
      std::move(group), std::move(trained), [all = std::move(all)] { return all; },
      HandleState::Holds::parts);
}

// What an optimizer updates of a module that this rank has all of.
[[nodiscard]] inline std::vector<NamedPart> trained_parts(const torch::nn::Module& module) {
  std::vector<NamedPart> parts;
  for (const auto& [name, tensor, aliases] : unique_parameters(module))
    if (tensor.requires_grad())
      parts.push_back({name, tensor, aliases, layout::whole_slice(tensor.sizes())});
  return parts;
}

}  // namespace lockstep::train
