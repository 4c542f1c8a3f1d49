// The places of ranks that srun started.
#pragma once

#include "rank_env/rank_info.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rank_env {

// Returns std::nullopt unless srun started this process in a step: the shells of sbatch and salloc
// have some of the variables too, but are a single process. Throws BadInput as detect_rank() does.
//
// Ranks on one host rendezvous at a socket named after the step. With several hosts, rank 0's host
// (the first in the step's list) serves a store at the step's first reserved port
// (SLURM_STEP_RESV_PORTS) or, if none is reserved, at a port computed from the job and step
// numbers; its secret is the user's (secret.h).
[[nodiscard]] std::optional<RankInfo> detect_slurm();

// Returns the first host of a list: "node07" for "node[07-09,12],login". Throws BadInput if the
// text is not such a list.
[[nodiscard]] std::string first_host(std::string_view hosts);

// Returns the first port of a list such as "12000-12003,12010", or std::nullopt if the list is
// empty.
[[nodiscard]] std::optional<std::uint16_t> first_port(std::string_view ports);

// Returns a port below the ephemeral range, different for most other steps.
[[nodiscard]] std::uint16_t port_of_step(std::uint64_t job, std::uint64_t step);

}  // namespace lockstep::rank_env
