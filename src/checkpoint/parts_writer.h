// Writes one safetensors file of which every rank has parts, side by side and without a whole of
// anything.
//
//   rank 0      makes the file and reserves its space
//   all ranks   write the runs of their own boxes, each element once, and flush them to the disk
//   rank 0      writes the header, with the checksums, and flushes it
//
// A rank that does not see the file sends its boxes to rank 0, a few megabytes at a time.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/write_plan.h"

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>

#include <filesystem>
#include <vector>

namespace lockstep::checkpoint {

// Collective; rank 0's metadata are written. `path` is one that was never
// used before, so that a rank either sees this file or none. CommonFailure on every rank when it
// failed on one; errors of the group. What was written stays there then.
void write_parts(Group& group, const std::filesystem::path& path,
                 const std::vector<FilePart>& parts, const Metadata& metadata);

}  // namespace lockstep::checkpoint
