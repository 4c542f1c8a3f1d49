// CUDA_VISIBLE_DEVICES, which limits a process to some GPUs of its host.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rank_env {

// Returns the entries of the list `text`: numbers, or identifiers such as "GPU-8932f937...".
[[nodiscard]] std::vector<std::string> listed_gpus(std::string_view text);

// Returns the list for rank `local_rank` of a host on which each rank has `per_rank` GPUs: a part
// of `visible`, or GPU numbers if `visible` is not set. Throws BadInput if the list is too short
// for `local_ranks` ranks.
[[nodiscard]] std::string gpus_of_rank(int local_rank, int local_ranks, int per_rank,
                                       const std::optional<std::string>& visible);

}  // namespace lockstep::rank_env
