// The groups of a handle of fully_shard(), on a group or a mesh.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/ranks.h>

#include <optional>

namespace lockstep::sharded {

// Each carries calls of one kind, whose order is the same on all ranks even where the kinds
// interleave differently. The handle keeps them, here alone: its parts and
// its slices refer to them.
struct Groups {
  Group whole;                              // status, buffers, checks: all ranks
  Group gather;                             // units' values
  Group reduce;                             // units' gradients
  Group replicas;                           // ranks that hold the same shard
  std::optional<Mesh> mesh = std::nullopt;  // that they were made on, if there is one
};

// Collective. The last axis of a mesh shards, and the ranks of its other axes are replicas.
[[nodiscard]] Groups groups_on(const Ranks& ranks);

}  // namespace lockstep::sharded
