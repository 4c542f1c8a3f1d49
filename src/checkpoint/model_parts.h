// The model of a handle as parts of a file's tensors, both ways.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <lockstep/parallel/handle.h>

#include <vector>

namespace lockstep::checkpoint {

// Not collective. Returns this rank's parts of parameters and buffers, without ignored ones; with
// `aliases`, under each of their names. Throws InvalidArgument for a tensor that is not dense.
[[nodiscard]] std::vector<FilePart> model_parts(const std::vector<Part>& state, bool aliases);
// Returns the ignored tensors in the same way, under names that contain this rank.
[[nodiscard]] std::vector<FilePart> ignored_parts(const std::vector<Part>& state, int rank);

// Collective, except check_nothing_ignored(). Throw CollectiveFailure unless the file has exactly
// the tensors that model_parts() or ignored_parts() returns on all ranks, with the same shapes and
// dtypes; tied tensors may also have their other names. If there is no file of ignored tensors,
// check_nothing_ignored() throws BadInput if this rank ignores a tensor.
void check_model_fits(const std::vector<Part>& state, PartsReader& file);
void check_ignored_fit(const std::vector<Part>& state, PartsReader& file);
void check_nothing_ignored(const std::vector<Part>& state);

// Collective. Fills the handle's parts. `ignored` is null if the checkpoint has no ignored tensors.
void read_model(Handle& handle, PartsReader& model, PartsReader* ignored);

}  // namespace lockstep::checkpoint
