// The states of all ranks' random generators (LibTorch's default CPU generator), as tensors of one
// file: rank0, rank1, ...
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <lockstep/comm/group.h>

#include <vector>

namespace lockstep::checkpoint {

// Not collective. The current state of this rank, as a tensor and as the part that the rank writes.
[[nodiscard]] at::Tensor own_random_state();
[[nodiscard]] std::vector<FilePart> random_parts(int rank);
// Returns the states of all ranks, one per row of `states`, for a rank that writes them all.
[[nodiscard]] std::vector<FilePart> random_parts_of_all(const at::Tensor& states);

// Not collective; for a rank that sees the file. Reads and checks each state, one at a time. Throws
// BadInput, which names the file, unless there are `ranks` valid states.
void check_random_states(PartsReader& file, int ranks);

// Collective. Restores this rank's generator from the state it saved. The file must have been
// checked, and as many ranks must load it as saved it.
void load_random_state(PartsReader& file);

}  // namespace lockstep::checkpoint
