// The groups of a handle of fully_shard(), on a group or a mesh.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>

#include <optional>

namespace lockstep::sharded {

// Each carries calls of one kind, whose order is the same on all ranks even where the kinds
// interleave differently. The handle keeps them, here alone: its parts and
// its slices refer to them.
struct Groups {
  Group whole;                              // status, buffers, checks: all ranks
  Group gather;                             // units' values
  Group reduce;                             // units' gradients
  Group replicas;                           // on two axes: those that hold the same shard
  std::optional<Mesh> mesh = std::nullopt;  // that they were made on, if there is one
};

// Collective. InvalidArgument for a mesh of more than two axes.
[[nodiscard]] Groups groups_on(const Group& shards);
[[nodiscard]] Groups groups_on(const Mesh& mesh);

}  // namespace lockstep::sharded
