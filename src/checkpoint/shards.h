// Tensors that stand in one safetensors file or in several of them, its shards:
//
//   model.safetensors                      one
//   model-00001-of-00003.safetensors       three, and
//   model.safetensors.index.json           {"metadata": {"total_size": 123},
//                                           "weight_map": {"fc.weight": "model-00001-of-...", ...}}
//
// Names and index are those of the model hubs, so their programs read the shards. A tensor is never
// cut between files.
#pragma once

#include "checkpoint/safetensors_header.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

inline constexpr const char* index_end = ".index.json";

// Whether it is the name of something in a folder itself: it leads nowhere else, and can be shown.
[[nodiscard]] bool is_name_in_folder(const std::string& name);

// What `path` becomes where there are `count` files: itself, or the shards beside it.
[[nodiscard]] std::vector<std::filesystem::path> shard_paths(const std::filesystem::path& path,
                                                             std::size_t count);
[[nodiscard]] std::filesystem::path index_path(const std::filesystem::path& path);
// Whether there are several files and no `path`.
[[nodiscard]] bool has_index(const std::filesystem::path& path);

// By tensor the name of a file beside the index.
using WeightMap = std::map<std::string, std::string>;

// The text of the index, where all tensors have so many bytes; and of the index of files with these
// headers.
[[nodiscard]] std::string index_text(const WeightMap& map, std::uint64_t bytes);
[[nodiscard]] std::string index_text(std::span<const SafetensorsHeader> shards,
                                     std::span<const std::filesystem::path> paths);

// What an index says. BadInput names the index: no JSON, a tensor that is named twice, a name that
// leads to another folder. SystemError.
[[nodiscard]] WeightMap read_weight_map(const std::filesystem::path& index);
// The files that it names, each once, by name.
[[nodiscard]] std::vector<std::filesystem::path> files_of(const WeightMap& map,
                                                          const std::filesystem::path& index);

// BadInput unless the shards have exactly the tensors that the index names, each where it says.
void check_indexed(const WeightMap& map, const std::filesystem::path& index,
                   std::span<const SafetensorsHeader> shards,
                   std::span<const std::filesystem::path> paths);

}  // namespace lockstep::checkpoint
