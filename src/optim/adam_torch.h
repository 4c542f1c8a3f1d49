// Adam and AdamW by LibTorch's fused kernels: other devices, and float64.
#pragma once

#include "optim/adam_step.h"

namespace lockstep::optim {

// Updates those slots that are not for our kernels.
void update_by_torch(std::vector<Slot>& slots, const AdamRule& rule, const GroupStep& step);

}  // namespace lockstep::optim
