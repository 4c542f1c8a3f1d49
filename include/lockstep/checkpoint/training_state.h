// Everything a run needs to go on as if it had never stopped, in one folder that appears as a whole
// or not at all.
//
//   OUT/LATEST                                "step-00000100"
//   OUT/step-00000100/model.safetensors       the model's tensors, each memory once
//                     optimizer.safetensors   optimizer.<parameter>.<field>
//                     random.safetensors      rank0, rank1, ...: the state of each rank's generator
//                     ignored.safetensors     rank0.<tensor>, ...: what the handle ignores; only
//                                             where there is such a tensor
//                     own.safetensors         rank0.<name>, ...: what each rank has of its own
//                                             (SaveOptions::own); only where there is such a tensor
//                     layout.json             step, ranks, mesh, each rank's parts, the program's
//                                             own values, a checksum of each file's header
//
// Instead of a large file there are shards, model-00001-of-00003.safetensors and so on, and
// model.safetensors.index.json, which names the file of each tensor, as on the model hubs.
// docs/checkpoint_format.md has every byte.
//
// It is written as OUT/.step-00000100.RANDOM.partial, brought to the disk file by file, and
// renamed: a reader never sees half, and after a crash or on a full disk the checkpoints before it
// are as they were. lockstep/checkpoint/checkpoint.h writes and loads it; what is here looks at it.
// Nothing here is collective: any thread of any rank that sees the folder may call.
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

// What a program counts beside model and optimizer.
struct TrainingState {
  std::int64_t step = 0;                       // updates made; the folder is called after it
  std::int64_t epoch = 0;                      // passes begun before this one
  std::map<std::string, double> numbers = {};  // the program's own: a best loss, in full precision
  Metadata progress = {};                      // the same as texts: the place in the data
  Metadata config = {};                        // the options of the run, by name
  int ranks = 0;                               // that saved it; save() counts them
};

// "step-00000100": what the folder of a step is called.
[[nodiscard]] std::string checkpoint_name(std::int64_t step);

// The checkpoint folders below `out`, oldest first. An `out` that is not there holds none; one that
// cannot be read is a SystemError, and never an empty list. BadInput names what is called as a
// checkpoint and is no folder (a link to a disk that is not mounted).
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& out);
// The last of them. BadInput where there is none, and the file LATEST says that there was one.
[[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& out);

// Reads layout.json of a checkpoint folder. Throws BadInput that names the file and what is wrong
// with it: no plain file, a value of another type or out of its range, a step that is not the
// folder's. SystemError where the system refuses.
[[nodiscard]] TrainingState read_training_state(const std::filesystem::path& folder);

// Reads all of a checkpoint folder, a few megabytes at a time. For layout.json throws as
// read_training_state(), and BadInput for every other file that cannot be read, is not whole or not
// of this checkpoint: one that is missing, one that the system does not let us read,
// headers that make no sense or are not those that layout.json was saved with, bytes that were
// overwritten (each tensor has a checksum), states that no random generator takes.
void verify(const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
