// Tensors of each rank's own (SaveOptions::own) as entries of a file, both ways.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// What stands in a file before the name of a tensor that belongs to one rank: "rank3.".
[[nodiscard]] std::string prefix_of(int rank);

// Local. InvalidArgument names a tensor that is not dense.
[[nodiscard]] std::vector<FilePart> own_parts(const std::map<std::string, at::Tensor>& own,
                                              int rank);

// Collective: those of this rank.
[[nodiscard]] std::map<std::string, at::Tensor> read_own(PartsReader& file);

}  // namespace lockstep::checkpoint
