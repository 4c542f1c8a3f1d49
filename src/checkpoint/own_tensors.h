// Converts each rank's own tensors (SaveOptions::own) to entries of a file, and back.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// Returns the prefix, in a file, of the names of tensors that belong to one rank: "rank3.".
[[nodiscard]] std::string prefix_of(int rank);

// Not collective. Throws InvalidArgument, which names a tensor that is not dense.
[[nodiscard]] std::vector<FilePart> own_parts(const std::map<std::string, at::Tensor>& own,
                                              int rank);

// Collective. Returns the tensors of this rank.
[[nodiscard]] std::map<std::string, at::Tensor> read_own(PartsReader& file);

}  // namespace lockstep::checkpoint
