// The places of ranks that mpirun started: OpenMPI's, and hydra's (MPICH, Intel MPI).
#pragma once

#include "rank_env/rank_info.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::rank_env {

// A process, told apart from a later one with the same number.
struct Ancestor {
  int pid = 0;
  std::uint64_t start_time = 0;  // in ticks since the machine started
};

// The nearest ancestor of this process that runs a program of that name (15 letters at most, as in
// /proc/PID/comm), else its parent. Ranks may have been started through shells and wrappers.
[[nodiscard]] Ancestor nearest_ancestor(std::string_view program);

// Nothing where mpirun did not start this process. Ranks on one host meet at a socket named after
// the run; those on several by MPI itself. BadInput as detect_rank().
[[nodiscard]] std::optional<RankInfo> detect_mpirun();

}  // namespace lockstep::rank_env
