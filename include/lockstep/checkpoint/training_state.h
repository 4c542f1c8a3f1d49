// The complete state of a training run in one folder, which is written atomically.
//
//   OUT/LATEST                                "step-00000100"
//   OUT/step-00000100/model.safetensors       the model's tensors, each memory once
//                     optimizer.safetensors   optimizer.<parameter>.<field>
//                     random.safetensors      rank0, rank1, ...: the state of each rank's generator
//                     ignored.safetensors     rank0.<tensor>, ...: tensors that the handle ignores,
//                                             if any
//                     own.safetensors         rank0.<name>, ...: each rank's own tensors
//                                             (SaveOptions::per_rank), if any
//                     layout.json             step, ranks, mesh, each rank's parts, the program's
//                                             own values, a checksum of each file's header
//
// A large file is replaced by shards, model-00001-of-00003.safetensors and so on, and
// model.safetensors.index.json, which names the file of each tensor, as on the model hubs.
// docs/reference/checkpoint_format.md specifies every byte.
//
// The folder is written as OUT/.step-00000100.RANDOM.partial, flushed file by file, and renamed: a
// reader never sees an incomplete one, and after a crash or on a full disk the earlier checkpoints
// are unchanged. lockstep/checkpoint/checkpoint.h writes and loads checkpoints; the functions here
// inspect them. They are not collective: any thread of any rank that sees the folder may call them.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

// The progress of a program beside model and optimizer.
struct TrainingState {
  std::int64_t step = 0;                       // number of updates; part of the folder's name
  std::int64_t epoch = 0;                      // passes begun before the current one
  std::map<std::string, double> numbers = {};  // the program's values, in full precision
  Metadata progress = {};                      // the program's texts: the position in the data
  Metadata config = {};                        // the options of the run, by name
  int ranks = 0;                               // number of ranks that saved it; set by save()
};

// Returns the name of a step's folder: "step-00000100".
[[nodiscard]] std::string checkpoint_name(std::int64_t step);

// Returns the checkpoint folders in `out`, oldest first. Returns an empty list if `out` does not
// exist; throws SystemError if it cannot be read. Throws BadInput, which names the path, if
// something is named like a checkpoint but is not a folder (a link to a disk that is not mounted).
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& out);
// Returns the newest checkpoint folder in `out`, if there is one. Throws BadInput if there is no
// checkpoint but the file LATEST names one.
[[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& out);

// Reads layout.json of a checkpoint folder. Throws BadInput, which names the file and the problem:
// not a regular file, a value of another type or out of range, a step that is not the folder's.
// Throws SystemError if the file cannot be read.
[[nodiscard]] TrainingState read_training_state(const std::filesystem::path& folder);

// Reads all of a checkpoint folder, a few megabytes at a time. Throws as read_training_state() for
// layout.json. Throws BadInput for every other file that is missing, unreadable, incomplete or not
// of this checkpoint: its header is invalid or not the one that layout.json was saved with, bytes
// were overwritten (each tensor has a checksum), or a random state is invalid.
void verify(const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
