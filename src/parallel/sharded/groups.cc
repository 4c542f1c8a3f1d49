#include "parallel/sharded/groups.h"

#include <string>
#include <vector>

namespace lockstep::sharded {

// Each kind of call has a group of its own: its order is then the same on all ranks whatever the
// other kinds do meanwhile.
Groups groups_on(const Ranks& ranks) {
  Group shards = ranks.group(), replicas;
  if (ranks.mesh() && ranks.mesh()->axes().size() > 1) {
    const Mesh& mesh = *ranks.mesh();
    std::vector<std::string> names;
    for (const MeshAxis& axis : mesh.axes()) names.push_back(axis.name);
    shards = mesh[names.back()];
    names.pop_back();
    replicas = names.size() == 1 ? mesh[names.front()] : mesh.sub_mesh(names).group();
    replicas = replicas.split(0);
  }
  return {ranks.group(), shards.split(0), shards.split(0), replicas, ranks.mesh()};
}

}  // namespace lockstep::sharded
