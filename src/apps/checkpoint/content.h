// What `lockstep checkpoint` is told to look at: the folder of a run, of a checkpoint, or a file of
// tensors. BadInput and SystemError name what is missing or makes no sense.
#pragma once

#include "checkpoint/safetensors_header.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::apps {

[[nodiscard]] bool is_checkpoint(const std::filesystem::path& path);

// A checkpoint or a file as it is; of a run the newest checkpoint.
[[nodiscard]] std::filesystem::path one_at(const std::filesystem::path& path);
// The same, but all checkpoints of a run, oldest first.
[[nodiscard]] std::vector<std::filesystem::path> all_at(const std::filesystem::path& path);

// What checkpoint::PartsReader opens: a checkpoint's files with tensors, each perhaps in shards; of
// a file or an index itself.
[[nodiscard]] std::vector<std::filesystem::path> tensor_files_of(const std::filesystem::path& path);
[[nodiscard]] std::uint64_t bytes_of(const std::filesystem::path& path);

// "F32 [2, 3]", as the file says it.
[[nodiscard]] std::string kind_of(const checkpoint::TensorEntry& entry);

}  // namespace lockstep::apps
