// Everything a run needs to go on as if it had never stopped, in one folder that appears as a whole
// or not at all.
//
//   OUT/step-00000100/model.safetensors       the model's tensors, each memory once, and in the
//                                             metadata what they are a model of
//                     optimizer.safetensors   optimizer.<parameter>.<field>
//                     random.safetensors      rank0, rank1, ...: the state of each rank's generator
//                     training.json           {"format": 1, "step": 100, "epoch": 0, "ranks": 2,
//                                              "progress": {...}, "config": {...}}
//
// It is written as OUT/.step-00000100.partial, brought to the disk file by file, and renamed: a
// reader never sees half, and after a crash or on a full disk the checkpoints before it are as they
// were. Only one rank writes; nothing here is collective.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

struct TrainingState {
  std::int64_t step = 0;   // updates made
  std::int64_t epoch = 0;  // passes begun before this one
  NamedTensors model;
  Metadata description;            // of the model; share() leaves it out
  NamedTensors optimizer;          // as optimizer_state() names them
  std::vector<at::Tensor> random;  // one for each rank, as at::Generator::get_state() gives it
  Metadata progress;               // what the trainer counts: place in the data, best loss, seconds
  Metadata config;                 // the options of the run, by name
};

// Writes the folder of state.step below `out`, which must exist, and then removes all but the
// `keep` newest (0: none is removed). Throws SystemError when the disk refuses, BadInput when that
// step is there already; the folder is then not there and older checkpoints stay.
void save_training_state(const std::filesystem::path& out, const TrainingState& state,
                         std::int64_t keep = 0);

// "step-00000100": what the folder of a step is called.
[[nodiscard]] std::string checkpoint_name(std::int64_t step);

// The checkpoint folders below `out`, oldest first. An `out` that is not there holds none.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& out);
[[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& out);

// Reads one checkpoint folder. Throws BadInput that names the file and what is wrong with it: no
// plain file, a value of another type or out of its range, a step that is not the folder's, bytes
// that were overwritten (each tensor has a checksum), random states that are no bytes. SystemError
// where the system refuses.
[[nodiscard]] TrainingState load_training_state(const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
