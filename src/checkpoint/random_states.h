// The states of all ranks' random generators (LibTorch's default one on the CPU), as tensors of one
// file: rank0, rank1, ...
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <lockstep/comm/group.h>

#include <vector>

namespace lockstep::checkpoint {

// Local: of this rank, now, and as what a rank writes.
[[nodiscard]] at::Tensor own_random_state();
[[nodiscard]] std::vector<FilePart> random_parts(int rank);
// Of all ranks, where one writes what others have: a row for each.
[[nodiscard]] std::vector<FilePart> random_parts_of_all(const at::Tensor& states);

// Local, on a rank that sees the file: reads and checks each state, one at a time. BadInput names
// the file where there are not `ranks` of them, or one that no generator takes.
void check_random_states(PartsReader& file, int ranks);

// Collective: the state that this rank saved becomes its generator's. The file has been checked,
// and as many ranks load it as saved it.
void load_random_state(PartsReader& file);

}  // namespace lockstep::checkpoint
