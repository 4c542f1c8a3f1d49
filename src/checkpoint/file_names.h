// The files of a checkpoint's folder, and the one beside it.
#pragma once

#include <array>
#include <string_view>

namespace lockstep::checkpoint {

// With tensors; each may be several shards (shards.h).
inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* optimizer_file = "optimizer.safetensors";
inline constexpr const char* ignored_file = "ignored.safetensors";
inline constexpr const char* own_file = "own.safetensors";
inline constexpr const char* random_file = "random.safetensors";

// The shards of a folder that model hubs have, where model_file is not all.
inline constexpr const char* index_file = "model.safetensors.index.json";

// All of them; without ignored_file where no rank ignores anything, and without own_file where none
// has tensors of its own.
inline constexpr std::array tensor_files{model_file, optimizer_file, ignored_file, own_file,
                                         random_file};

// Of those two.
constexpr bool may_be_missing(std::string_view name) {
  return name == ignored_file || name == own_file;
}

inline constexpr const char* layout_file = "layout.json";

// Beside the folders: the name of the newest of them.
inline constexpr const char* latest_file = "LATEST";

}  // namespace lockstep::checkpoint
