// Wishes: what a mesh's tensors are for, where a single operation cannot tell which of several
// placements suits those that follow.
#pragma once

#include <lockstep/global/placement.h>

#include <cstdint>
#include <vector>

namespace lockstep::global {

struct Wishes {
  // Of activations of three dims, the one along which they are cut on this axis where that costs no
  // more than to have them whole (sequence parallelism); -1: none.
  int sequence_dim = -1;
  int sequence_axis = 0;

  // Attention of tensors that are cut along the sequence on this axis cuts heads meanwhile, by an
  // all_to_all before and after it (head_attention.h); -1: keys go round (ring_attention.h).
  int heads_axis = -1;

  // A table of embeddings, whose gradient goes to these placements.
  struct Table {
    std::vector<std::int64_t> sizes;
    Placements placements;
  };
  std::vector<Table> tables;
};

}  // namespace lockstep::global
