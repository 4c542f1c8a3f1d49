// The places of ranks that mpirun started: OpenMPI's, and hydra's (MPICH, Intel MPI).
#pragma once

#include "launch/detection/rank_info.h"

#include <optional>

namespace lockstep::launch {

// Nothing where mpirun did not start this process. Ranks on one host meet at a socket named after
// the run; those on several by MPI itself. BadInput as detect_rank().
[[nodiscard]] std::optional<RankInfo> detect_mpirun();

}  // namespace lockstep::launch
