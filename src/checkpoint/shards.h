// Tensors in one safetensors file, or in several, its shards:
//
//   model.safetensors                      one
//   model-00001-of-00003.safetensors       three, and
//   model.safetensors.index.json           {"metadata": {"total_size": 123},
//                                           "weight_map": {"fc.weight": "model-00001-of-...", ...}}
//
// Names and index follow the model hubs, so their programs can read the shards. A tensor is never
// split between files.
#pragma once

#include "checkpoint/safetensors_header.h"

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

inline constexpr const char* index_end = ".index.json";

// Returns true for a plain name in a folder: without path separators, and printable.
[[nodiscard]] bool is_name_in_folder(const std::string& name);

// Returns the paths for `count` files: `path` itself, or the shards beside it.
[[nodiscard]] std::vector<std::filesystem::path> shard_paths(const std::filesystem::path& path,
                                                             std::size_t count);
[[nodiscard]] std::filesystem::path index_path(const std::filesystem::path& path);
// Returns the path for which index_path() returns `path`; another path itself.
[[nodiscard]] std::filesystem::path without_index_end(const std::filesystem::path& path);
// Returns true if there is an index and no file `path`.
[[nodiscard]] bool has_index(const std::filesystem::path& path);
// Returns true if there is a file `path` or an index.
[[nodiscard]] bool has_tensors(const std::filesystem::path& path);

// Maps each tensor to the name of a file beside the index.
using WeightMap = std::map<std::string, std::string>;

// Returns the text of an index for files with these headers.
[[nodiscard]] std::string index_text(std::span<const SafetensorsHeader> shards,
                                     std::span<const std::filesystem::path> paths);

// Reads an index. Throws BadInput, which names the index, if it is not JSON, names a tensor twice
// or contains a name that leads to another folder; SystemError.
[[nodiscard]] WeightMap read_weight_map(const std::filesystem::path& index);
// Returns the files that the index names, each once, sorted by name.
[[nodiscard]] std::vector<std::filesystem::path> files_of(const WeightMap& map,
                                                          const std::filesystem::path& index);

}  // namespace lockstep::checkpoint
