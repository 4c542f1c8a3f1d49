// A slot as LibTorch's fused kernels want it.
#pragma once

#include "optim/slot.h"

namespace lockstep::optim {

// What is updated: the parameter itself, or its master.
[[nodiscard]] at::Tensor updated_tensor(const Slot& slot);
// The treated gradient in its dtype. Maximizing is left to the kernel.
[[nodiscard]] at::Tensor treated_gradient(const Slot& slot, const ElementTreatment& treatment);
// Rounds a master into its parameter.
void publish_master(const Slot& slot);

}  // namespace lockstep::optim
