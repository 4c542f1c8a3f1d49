// The places of ranks that mpirun started: Open MPI's, and hydra's (MPICH, Intel MPI).
#pragma once

#include "rank_env/rank_info.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::rank_env {

// A process, identified also by its start time because pids are reused.
struct Ancestor {
  int pid = 0;
  std::uint64_t start_time = 0;  // in ticks since the host booted
};

// Returns the nearest ancestor of this process that runs the given program (at most 15 letters, as
// in /proc/PID/comm), otherwise its parent. Shells and wrappers may lie between mpirun and a rank.
[[nodiscard]] Ancestor nearest_ancestor(std::string_view program);

// Returns std::nullopt unless mpirun started this process. Ranks on one host rendezvous at a socket
// named after the run, ranks on several hosts through MPI. Throws BadInput as detect_rank() does.
[[nodiscard]] std::optional<RankInfo> detect_mpirun();

}  // namespace lockstep::rank_env
