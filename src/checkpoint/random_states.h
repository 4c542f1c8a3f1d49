// The states of all ranks' random generators (LibTorch's default one on the CPU), in one file.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>

#include <filesystem>
#include <vector>

namespace lockstep::checkpoint {

// Local: of this rank, now.
[[nodiscard]] at::Tensor own_random_state();
// Collective: every rank's such state on rank 0, and none elsewhere.
[[nodiscard]] std::vector<at::Tensor> gather_random_states(Group& group, const at::Tensor& own);

// "rank0", "rank1", ...
[[nodiscard]] NamedTensors named_random_states(const std::vector<at::Tensor>& states);

// Local. BadInput names the file where there are not `ranks` states, or one that no generator
// takes.
[[nodiscard]] std::vector<at::Tensor> read_random_states(const std::filesystem::path& file,
                                                         int ranks);

// Collective: this rank's of those that rank 0 passes, one for each rank, becomes its generator's.
void scatter_random_states(Group& group, const std::vector<at::Tensor>& states);

}  // namespace lockstep::checkpoint
