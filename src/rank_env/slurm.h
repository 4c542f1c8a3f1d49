// The places of ranks that srun started.
#pragma once

#include "rank_env/rank_info.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rank_env {

// Nothing outside a step that srun started: the shells of sbatch and salloc have some of the
// variables too, and are one process. BadInput as detect_rank().
//
// Ranks on one host meet at a socket named after the step. On several, rank 0's host (the first of
// the step's list) serves a store at the step's first reserved port (SLURM_STEP_RESV_PORTS), else
// at one made from the numbers of job and step; its secret is the user's (secret.h).
[[nodiscard]] std::optional<RankInfo> detect_slurm();

// The first host of a list such as "node[07-09,12],login": "node07". BadInput when the text is no
// such list.
[[nodiscard]] std::string first_host(std::string_view hosts);

// The first port of a list such as "12000-12003,12010"; nothing when there is none.
[[nodiscard]] std::optional<std::uint16_t> first_port(std::string_view ports);

// A port below those that systems give to clients, another for most other steps.
[[nodiscard]] std::uint16_t port_of_step(std::uint64_t job, std::uint64_t step);

}  // namespace lockstep::rank_env
