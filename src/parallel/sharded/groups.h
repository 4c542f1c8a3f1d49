// The groups of a handle, of a group or a mesh.
#pragma once

#include "parallel/sharded/unit_reducer.h"

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>

namespace lockstep::sharded {

// Collective. InvalidArgument for a mesh of more than two axes.
[[nodiscard]] Groups groups_on(const Group& shards);
[[nodiscard]] Groups groups_on(const Mesh& mesh);

}  // namespace lockstep::sharded
