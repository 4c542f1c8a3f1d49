// Where one optimizer keeps its state when several handles of this rank offload theirs.
#pragma once

#include <lockstep/optim/state_memory.h>

#include <memory>
#include <vector>

namespace lockstep::parallel {

// All of these as one: state is made in the first, and advice goes to each. Null ones are left out;
// null where there is none.
[[nodiscard]] std::shared_ptr<optim::StateMemory> one_of(
    std::vector<std::shared_ptr<optim::StateMemory>> memories);

}  // namespace lockstep::parallel
