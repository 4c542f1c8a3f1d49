// Ranks: the `ranks` argument of every strategy, a Group or a Mesh.
//
//   lockstep::fully_shard(net, world);                                 // a group
//   lockstep::fully_shard(net, mesh.sub_mesh({"dp", "fsdp"}));         // a mesh
//
// A handle that was given a mesh returns it from mesh(), and checkpoints record its axes. Ranks is
// a type for function parameters; both Group and Mesh convert to it.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>

#include <optional>
#include <utility>

#pragma GCC visibility push(default)

namespace lockstep {

class Ranks {
 public:
  Ranks(Group group) : group_(std::move(group)) {}
  Ranks(Mesh mesh) : group_(mesh.group()), mesh_(std::move(mesh)) {}

  // Returns the group of all ranks.
  [[nodiscard]] const Group& group() const { return group_; }
  // Returns the mesh, or std::nullopt if a group was given.
  [[nodiscard]] const std::optional<Mesh>& mesh() const { return mesh_; }

 private:
  Group group_;
  std::optional<Mesh> mesh_;
};

}  // namespace lockstep

#pragma GCC visibility pop
