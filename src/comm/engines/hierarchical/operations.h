// Performs the operations of a group that spans hosts with subgroups: one of the ranks of this
// host, others of ranks of different hosts, and one of all ranks. Subgroups are used through
// Group's public methods only.
#pragma once

#include <lockstep/comm/group.h>

#include "comm/backend/posted_call.h"
#include "comm/engines/hierarchical/layout.h"

#include <optional>

namespace lockstep::hierarchical {

struct Parts {
  Layout layout;
  Group local;                  // Layout::across(); std::nullopt if this rank is not in it
  std::optional<Group> across;  // Layout::across(); nothing for a rank that is not among them
  Group all;                    // every rank; slow, for operations that the others cannot do
};

// Performs one call; returns when this rank's part is complete. Throws the subgroups' exceptions.
// One thread performs the calls of one task queue; calls of different queues run concurrently.
//
// all_reduce, h hosts of l ranks each: reduce_scatter inside the host, all_reduce of each chunk
// across hosts by all ranks at once, all_gather inside. A rank sends 2 (h-1)/h of an l-th of the
// tensor across hosts; a flat ring would send 2 (hl-1)/hl of the whole tensor (the scheme of
// BlueConnect, Cho et al., MLSys 2019). Large tensors are split into segments, so that
// communication inside hosts and over the network overlap.
void perform(const Parts& parts, const PostedCall& call);

}  // namespace lockstep::hierarchical
