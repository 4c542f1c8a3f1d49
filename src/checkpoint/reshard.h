// A checkpoint once more, in other files.
#pragma once

#include <lockstep/checkpoint/checkpoint.h>

#include <filesystem>

namespace lockstep::checkpoint {

// Local. Writes the folder `to`, as save() writes one, with the tensors and layout.json of the
// folder `from`, whose checksums are compared first. Takes the memory of the largest tensor. `to`
// is not there yet; when it has the name of a step, that is the checkpoint's. BadInput for what is
// not whole, CommonFailure for what cannot be written, and then nothing is left of it.
void reshard(const std::filesystem::path& from, const std::filesystem::path& to,
             const Sharding& sharding);

}  // namespace lockstep::checkpoint
