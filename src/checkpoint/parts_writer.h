// Writes a safetensors file, or its shards, of which every rank has parts, side by side and without
// a whole of anything.
//
//   rank 0      makes the files and reserves their space, before another rank opens them
//   all ranks   write the runs of their own boxes, each element once, and flush them to the disk
//   rank 0      writes the headers, with the checksums, and the index of shards, and flushes them
//
// A rank that does not see the files sends its boxes to rank 0, a few megabytes at a time.
#pragma once

#include "checkpoint/planned_tensors.h"

#include <lockstep/comm/group.h>

#include <filesystem>

namespace lockstep::checkpoint {

// Collective. `path` is one that was never used before, so that a rank either sees these files or
// none. CommonFailure on every rank when it failed on one; errors of the group. What was written
// stays there then.
void write_parts(Group& group, const std::filesystem::path& path, PlannedTensors& tensors);

}  // namespace lockstep::checkpoint
