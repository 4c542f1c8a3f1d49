// The names of the files in and beside a checkpoint's folder.
#pragma once

#include <array>
#include <string_view>

namespace lockstep::checkpoint {

// Files with tensors; each may be split into shards (shards.h).
inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* optimizer_file = "optimizer.safetensors";
inline constexpr const char* ignored_file = "ignored.safetensors";
inline constexpr const char* own_file = "own.safetensors";
inline constexpr const char* random_file = "random.safetensors";

// The index of a model hub's folder, if the model is not one model_file.
inline constexpr const char* index_file = "model.safetensors.index.json";

// All files with tensors. ignored_file exists only if a rank ignores a tensor, own_file only if a
// rank has tensors of its own.
inline constexpr std::array tensor_files{model_file, optimizer_file, ignored_file, own_file,
                                         random_file};

// Returns true for these two files.
constexpr bool may_be_missing(std::string_view name) {
  return name == ignored_file || name == own_file;
}

inline constexpr const char* layout_file = "layout.json";

// Beside the folders: contains the name of the newest one.
inline constexpr const char* latest_file = "LATEST";

}  // namespace lockstep::checkpoint
