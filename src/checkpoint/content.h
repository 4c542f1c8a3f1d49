// Content: what one checkpoint will hold, and how its folder is written.
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

// The tensors of one of its files, or of the shards of that.
struct PlannedFile {
  const char* name;  // one of tensor_files
  PlannedTensors tensors;
};

struct Content {
  std::string name;  // of the folder, rank 0's
  LayoutJson json;   // rank 0's counts
  std::vector<PlannedFile> files;
  std::int64_t keep = 0;
  std::function<void()> before_naming;

  // Local: copies all tensors that this rank writes into memory of the caller's, which must stay
  // until the folder is written. Then training may go on.
  [[nodiscard]] std::size_t snapshot_bytes() const;
  void take_snapshot(std::span<std::byte> bytes);
};

// Local: what is saved beside the tensors. InvalidArgument for texts that are no UTF-8.
[[nodiscard]] LayoutJson layout_json(const TrainingState& state, const SaveOptions& options,
                                     int ranks);

// Collective: refers to the tensors of handle and optimizer until a snapshot is taken.
// CommonFailure for what cannot be saved.
[[nodiscard]] Content content_of(Group& group, const Handle& handle,
                                 const torch::optim::Optimizer& optimizer,
                                 const TrainingState& state, const SaveOptions& options);

// Collective: CommonFailure where such a checkpoint could not be written into `out`: it is there
// already, or a newer one is. Reads the folder, and changes nothing.
void check_place(Group& group, const std::filesystem::path& out, const Content& content);

// Collective: writes the folder and removes older ones; returns its path. CommonFailure when it
// failed on a rank, and then nothing is left of it.
std::filesystem::path write_content(Group& group, const std::filesystem::path& out,
                                    Content& content);

}  // namespace lockstep::checkpoint
