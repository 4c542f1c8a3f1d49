// Where tensors of state are made: many in one storage, in ordinary memory or a StateMemory.
#pragma once

#include "optim/slot.h"

#include <lockstep/optim/state_memory.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::optim {

// A tensor of state that is to be made.
struct WantedTensor {
  at::Tensor dense;  // what it is kept of: it gets these sizes and strides, which leave no holes
  KeptTensor kept;   // the places that are set
  at::ScalarType dtype = at::ScalarType::Float;
  // What is kept elsewhere until now, or what it begins with; undefined: zeros.
  at::Tensor values;
  at::Tensor scales;
};

// Gives all that are of one dtype and device places in one storage: side by side where what they
// are kept of is, so that runs can merge. `memory` null, or another device than the CPU: ordinary
// memory.
void make_together(const std::vector<WantedTensor>& wanted, StateMemory* memory);

// Whether `values` are to be moved to `memory`.
[[nodiscard]] bool lies_elsewhere(const at::Tensor& values, const StateMemory* memory);

}  // namespace lockstep::optim
