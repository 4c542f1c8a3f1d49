// The files of a checkpoint's folder, and the one beside it.
#pragma once

#include <array>

namespace lockstep::checkpoint {

// With tensors; each may be several shards (shards.h).
inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* optimizer_file = "optimizer.safetensors";
inline constexpr const char* ignored_file = "ignored.safetensors";
inline constexpr const char* random_file = "random.safetensors";

// The shards of a folder that model hubs have, where model_file is not all.
inline constexpr const char* index_file = "model.safetensors.index.json";

// All of them; without ignored_file where no rank ignores anything.
inline constexpr std::array tensor_files{model_file, optimizer_file, ignored_file, random_file};

inline constexpr const char* layout_file = "layout.json";

// Beside the folders: the name of the newest of them.
inline constexpr const char* latest_file = "LATEST";

}  // namespace lockstep::checkpoint
