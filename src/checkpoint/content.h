// Content: the data of one checkpoint, and the functions that write its folder.
#pragma once

#include "checkpoint/layout_json.h"
#include "checkpoint/planned_tensors.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// The tensors of one file of the checkpoint, or of its shards.
struct PlannedFile {
  const char* name;  // one of tensor_files
  PlannedTensors tensors;
};

struct Content {
  std::string name;  // folder name, rank 0's
  LayoutJson json;   // rank 0's is used
  std::vector<PlannedFile> files;
  std::int64_t keep = 0;
  std::function<void()> before_naming;

  // Not collective. Copies all tensors that this rank writes into memory of the caller, which must
  // stay valid until the folder is written. Training may then continue.
  [[nodiscard]] std::size_t snapshot_bytes() const;
  void take_snapshot(std::span<std::byte> bytes);
};

// Not collective. Returns the values to save beside the tensors. Throws InvalidArgument for texts
// that are not UTF-8.
[[nodiscard]] LayoutJson layout_json(const TrainingState& state, const SaveOptions& options,
                                     int ranks);

// Collective. The result refers to the tensors of handle and optimizer until a snapshot is taken.
// Throws CollectiveFailure for data that cannot be saved.
[[nodiscard]] Content content_of(Group& group, const Handle& handle,
                                 const torch::optim::Optimizer& optimizer,
                                 const TrainingState& state, const SaveOptions& options);

// Collective. Throws CollectiveFailure if such a checkpoint cannot be written into `out` because
// it, or a newer one, exists. Reads the folder and changes nothing.
void check_place(Group& group, const std::filesystem::path& out, const Content& content);

// Collective. Writes the folder and removes older ones; returns its path. Throws CollectiveFailure
// if a rank failed; all new files are then removed.
std::filesystem::path write_content(Group& group, const std::filesystem::path& out,
                                    Content& content);

// Not collective. Copies a checkpoint with another division into files: writes the folder `to`, as
// save() does, with the tensors and layout.json of the folder `from`, whose checksums are compared
// first. Needs memory for the largest tensor. `to` must not exist; if its name is that of a step,
// the step must be the checkpoint's. Throws BadInput for a damaged checkpoint, and
// CollectiveFailure if writing fails; all new files are then removed.
void reshard(const std::filesystem::path& from, const std::filesystem::path& to,
             const Sharding& sharding);

}  // namespace lockstep::checkpoint
