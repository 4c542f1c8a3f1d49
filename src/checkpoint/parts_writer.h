// Writes a safetensors file, or its shards. Every rank writes its parts concurrently, and no rank
// holds a whole tensor or file.
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

// Collective. `path` must never have been used before, so that a rank sees either these files or
// none. Throws CommonFailure on every rank if one rank failed; errors of the group. The written
// files stay in these cases.
void write_parts(Group& group, const std::filesystem::path& path, PlannedTensors& tensors);

}  // namespace lockstep::checkpoint
