// Connections for messages, made before the first step.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>

#include <optional>
#include <set>
#include <utility>

namespace lockstep {

// The source and destination of messages, as ranks of a group.
using Directions = std::set<std::pair<int, int>>;

// Collective over the ranks of `directions`, which are equal on all ranks, and blocking. If
// has_streams(group), sends a message in each direction: with NCCL the first one makes the
// direction's communicator, which blocks and allocates the GPU's memory. Else does nothing.
void connect(Group& group, const Directions& directions, std::optional<Duration> timeout = {});

}  // namespace lockstep
