// Tensors that each rank saves for itself, as entries of a file: the state of its random generator
// (LibTorch's default CPU generator) as rank0, rank1, ..., and its own tensors
// (SaveOptions::per_rank).
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
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
// checked, and must have one state per rank of the group.
void load_random_state(PartsReader& file);

// Returns the prefix, in a file, of the names of tensors that belong to one rank: "rank3.".
[[nodiscard]] std::string prefix_of(int rank);

// Not collective. Throws InvalidArgument, which names a tensor that is not dense.
[[nodiscard]] std::vector<FilePart> own_parts(const std::map<std::string, at::Tensor>& own,
                                              int rank);

// Collective. Returns the tensors of this rank.
[[nodiscard]] std::map<std::string, at::Tensor> read_own(PartsReader& file);

}  // namespace lockstep::checkpoint
