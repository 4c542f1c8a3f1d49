// Copies a checkpoint with another division into files.
#pragma once

#include <lockstep/checkpoint/checkpoint.h>

#include <filesystem>

namespace lockstep::checkpoint {

// Not collective. Writes the folder `to`, as save() does, with the tensors and layout.json of the
// folder `from`, whose checksums are compared first. Needs memory for the largest tensor. `to` must
// not exist; if it has the name of a step, it must be the checkpoint's. Throws BadInput for a
// damaged checkpoint, and CommonFailure if writing fails; all new files are then removed.
void reshard(const std::filesystem::path& from, const std::filesystem::path& to,
             const Sharding& sharding);

}  // namespace lockstep::checkpoint
