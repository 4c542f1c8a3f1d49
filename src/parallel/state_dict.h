// State dicts of whole tensors, made of the parts of all ranks and cut into them again.
#pragma once

#include "parallel/handle_state.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

namespace lockstep::parallel {

// Handle::state_dict() and Handle::load_state_dict(). Local if every rank has all tensors, else
// collective over the group of the handle. InvalidArgument on every rank if ranks describe a tensor
// differently, or have not all of its elements.
[[nodiscard]] std::map<std::string, at::Tensor> get_model_state_dict(HandleState& state);
void set_model_state_dict(const std::shared_ptr<HandleState>& state,
                          const std::map<std::string, at::Tensor>& tensors);

}  // namespace lockstep::parallel
