// CUDA_VISIBLE_DEVICES, by which CUDA limits a process to some GPUs of its host.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rank_env {

// The entries of the list `text`: numbers, or identifiers such as "GPU-8932f937...".
[[nodiscard]] std::vector<std::string> listed_gpus(std::string_view text);

// The list for the rank `local_rank` of a host, of which each has `per_rank` GPUs of its own: its
// part of `visible`, or the numbers of the GPUs if `visible` is not set. BadInput if the list is
// too short for `local_ranks` ranks.
[[nodiscard]] std::string gpus_of_rank(int local_rank, int local_ranks, int per_rank,
                                       const std::optional<std::string>& visible);

}  // namespace lockstep::rank_env
