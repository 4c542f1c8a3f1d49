#include "checkpoint/weight_folder.h"

#include "base/check.h"
#include "checkpoint/file_names.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shards.h"
#include "checkpoint/weight_files.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <memory>
#include <regex>
#include <set>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

struct WeightShard {
  std::string name;
  TensorSources tensors;
};

std::vector<WeightShard> divided_weights(const TensorSources& tensors, std::uint64_t shard_bytes) {
  check(shard_bytes > 0, "write_sharded_safetensors: shard_bytes must be positive, found 0");
  std::vector<WeightShard> shards(1);
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    if (bytes > 0 && bytes + tensor.bytes() > shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().tensors.emplace(name, tensor);
  }
  const std::vector<fs::path> names = shard_paths(model_file, shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) shards[i].name = names[i].string();
  return shards;
}

std::string index_of(const std::vector<WeightShard>& shards) {
  WeightMap map;
  std::uint64_t bytes = 0;
  for (const WeightShard& shard : shards)
    for (const auto& [name, tensor] : shard.tensors) {
      map[name] = shard.name;
      bytes += tensor.bytes();
    }
  return index_text(map, bytes);
}

// Removes files of an older model that are not in `names`.
void remove_other_weights(const fs::path& folder, const std::set<std::string>& names) {
  static const std::regex shard("model-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = name == model_file || name == index_file || std::regex_match(name, shard);
    if (is_ours && !names.contains(name)) fs::remove(entry.path());
  }
}

}  // namespace

void write_weight_folder(const fs::path& folder, const TensorSources& tensors,
                         const Metadata& metadata, ShardedWriting how,
                         const std::optional<std::string>& config) {
  const std::vector<WeightShard> shards = divided_weights(tensors, how.shard_bytes);
  sys::make_directories(folder);
  std::vector<std::pair<std::string, std::unique_ptr<sys::AtomicFile>>> files;
  auto add = [&](const std::string& name) -> sys::AtomicFile& {
    files.emplace_back(name, std::make_unique<sys::AtomicFile>(folder / name));
    return *files.back().second;
  };
  for (const WeightShard& shard : shards)
    write_tensors(add(shard.name), shard.tensors, metadata, {.checksums = how.checksums});
  if (shards.size() > 1) add(index_file).write(index_of(shards));
  if (config) add("config.json").write(*config);
  std::set<std::string> names;
  for (auto& [name, file] : files) {
    file->flush();
    names.insert(name);
  }
  // From here on, the folder has no model, or one whose files belong together.
  if (config) fs::remove(folder / "config.json");
  if (shards.size() > 1) remove_other_weights(folder, {});
  sys::flush_folder(folder);
  for (auto& [name, file] : files) {
    if (name == "config.json") remove_other_weights(folder, names);
    file->commit();
  }
  remove_other_weights(folder, names);
  sys::flush_folder(folder);
}

void write_sharded_safetensors(const fs::path& folder, const NamedTensors& tensors,
                               const Metadata& metadata, ShardedWriting how) {
  write_weight_folder(folder, sources_of(tensors), metadata, how);
}

Safetensors read_sharded_safetensors(const fs::path& folder) {
  const WeightFiles files(folder);
  Safetensors found;
  for (const std::string& name : files.names()) found.tensors.emplace(name, files.read(name));
  found.metadata = files.metadata();
  return found;
}

}  // namespace lockstep::checkpoint
