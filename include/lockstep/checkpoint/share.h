// A state that one rank has read, on all ranks: only that rank needs to see the files.
#pragma once

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/group.h>

#include <string>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

// Collective. Every rank gets the state that `root` passes, but for its description; what the
// others pass is not looked at.
// Throws the group's errors.
[[nodiscard]] TrainingState share(Group& group, TrainingState state, int root = 0);

// Collective. The text that `root` passes; what the others pass is not looked at.
[[nodiscard]] std::string broadcast_text(Group& group, std::string text, int root);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
