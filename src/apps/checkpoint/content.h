// The input of `lockstep checkpoint`: the folder of a run, the folder of a checkpoint, or a file of
// tensors. BadInput and SystemError name the path that is missing or invalid.
#pragma once

#include "checkpoint/safetensors_header.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::apps {

[[nodiscard]] bool is_checkpoint(const std::filesystem::path& path);

// Returns a checkpoint or a file itself, or the newest checkpoint of a run.
[[nodiscard]] std::filesystem::path one_at(const std::filesystem::path& path);
// Returns a checkpoint or a file itself, or all checkpoints of a run, oldest first.
[[nodiscard]] std::vector<std::filesystem::path> all_at(const std::filesystem::path& path);

// Returns the paths for checkpoint::PartsReader: a checkpoint's files with tensors, which may be
// sharded, or the given file or index itself.
[[nodiscard]] std::vector<std::filesystem::path> tensor_files_of(const std::filesystem::path& path);
[[nodiscard]] std::uint64_t bytes_of(const std::filesystem::path& path);

// Returns dtype and sizes as in the file: "F32 [2, 3]".
[[nodiscard]] std::string kind_of(const checkpoint::TensorEntry& entry);

}  // namespace lockstep::apps
