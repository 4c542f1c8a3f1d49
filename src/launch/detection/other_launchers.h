// The places of ranks that mpirun started: OpenMPI's, and hydra's (MPICH, Intel MPI).
#pragma once

#include "launch/detection/place.h"

#include <optional>

namespace lockstep::joining {

// Nothing where mpirun did not start this process. Ranks on one host meet at a socket named after
// the run; those on several by MPI itself. BadInput as read_place().
[[nodiscard]] std::optional<Place> read_mpirun_place();

}  // namespace lockstep::joining
