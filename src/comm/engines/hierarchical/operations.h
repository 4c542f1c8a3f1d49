// The operations of a group that spans hosts, in those of its parts: a group of the ranks of this
// host, groups of ranks of different hosts, and one of all ranks. Parts are used through Group's
// own methods only.
#pragma once

#include <lockstep/comm/group.h>

#include "comm/backend/posted_call.h"
#include "comm/engines/hierarchical/layout.h"

#include <optional>

namespace lockstep::hierarchical {

struct Parts {
  Layout layout;
  Group local;                  // the ranks of this host, in the order of the layout
  std::optional<Group> across;  // Layout::across(); nothing for a rank that is not among them
  Group all;                    // every rank; slow, for what the others cannot do
};

// Carries out one call and returns when this rank's part is complete. Throws what the parts throw.
// The calls of one task queue come from one thread; those of different queues come at once.
//
// all_reduce, h hosts of l ranks each: reduce_scatter inside the host, all_reduce of each chunk
// across hosts, by all ranks at once, all_gather inside; a rank sends 2 (h-1)/h of an l-th of the
// tensor across, where a flat ring would send 2 (hl-1)/hl of all of it (the scheme of BlueConnect,
// Cho et al., MLSys 2019). Large tensors go in segments, so that the hosts' insides and the network
// work at the same time.
void perform(const Parts& parts, const PostedCall& call);

}  // namespace lockstep::hierarchical
