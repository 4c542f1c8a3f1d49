// The model of a handle as parts of a file's tensors, both ways.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <lockstep/parallel/handle.h>

#include <string>
#include <vector>

namespace lockstep::checkpoint {

// Local: returns this rank's parts of parameters and buffers, without ignored ones; with `aliases`,
// under each of their names. Throws InvalidArgument for a tensor that is not dense.
[[nodiscard]] std::vector<FilePart> model_parts(const std::vector<Part>& state, bool aliases);
// Returns the ignored tensors in the same way, under names that contain this rank.
[[nodiscard]] std::vector<FilePart> ignored_parts(const std::vector<Part>& state, int rank);

// Collective. CommonFailure unless the file has exactly the tensors that model_parts() gives on all
// ranks, some of them perhaps under other names too, in their shapes and dtypes; or those that
// ignored_parts() gives. Where there is no such file, no rank may ignore anything: local, BadInput.
void check_model_fits(const std::vector<Part>& state, PartsReader& file);
void check_ignored_fit(const std::vector<Part>& state, PartsReader& file);
void check_nothing_ignored(const std::vector<Part>& state);

// Collective: fills the handle's parts. `ignored` is null if the checkpoint has no ignored tensors.
void read_model(Handle& handle, PartsReader& model, PartsReader* ignored);

}  // namespace lockstep::checkpoint
