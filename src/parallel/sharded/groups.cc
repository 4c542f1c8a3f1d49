#include "parallel/sharded/groups.h"

#include "base/check.h"

#include <utility>
#include <vector>

namespace lockstep::sharded {

// Each kind of call has a group of its own: its order is then the same on all ranks whatever the
// other kinds do meanwhile.
Groups groups_on(const Group& shards) {
  return {shards, shards.split(0), shards.split(0), Group()};
}

Groups groups_on(const Mesh& mesh) {
  const std::vector<MeshAxis>& axes = mesh.axes();
  check(axes.size() <= 2,
        "fully_shard: needs a mesh of one axis, or of two (copies, shards); found {}",
        mesh.layout().describe());
  if (axes.size() == 1) {
    Groups groups = groups_on(mesh.group());
    groups.mesh = mesh;
    return groups;
  }
  Group shards = mesh[axes[1].name];
  return {mesh.group(), shards.split(0), shards.split(0), mesh[axes[0].name].split(0), mesh};
}

}  // namespace lockstep::sharded
