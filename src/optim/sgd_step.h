// One step of SGD over a group's slots.
#pragma once

#include "optim/slot.h"

#include <vector>

namespace lockstep::optim {

struct SgdRule {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};

// Slots are prepared; slot.kept[0] is the momentum buffer, in use with momentum only.
void update_slots(std::vector<Slot>& slots, const SgdRule& rule, const GroupStep& step);

}  // namespace lockstep::optim
