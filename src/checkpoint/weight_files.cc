#include "checkpoint/weight_files.h"

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/checksum.h"
#include "checkpoint/shards.h"
#include "sys/files.h"

#include <ATen/ops/empty.h>

#include <memory>
#include <regex>
#include <set>
#include <span>
#include <utility>

namespace lockstep::checkpoint {

namespace fs = std::filesystem;

WeightFiles::WeightFiles(const fs::path& folder, const std::string& name) {
  const fs::path one = folder / name;
  if (has_index(one)) {
    read_index(index_path(one));
    return;
  }
  files_.push_back(open(one));
  add(0);
}

WeightFiles WeightFiles::of_file(const fs::path& path) {
  WeightFiles files;
  files.files_.push_back(open(path));
  files.add(0);
  return files;
}

WeightFiles::File WeightFiles::open(const fs::path& path) {
  sys::PlainFile file(path);
  return in_file(path, [&]() -> File {
    std::string text = read_header_text(file);
    const std::uint64_t begin = sizeof(std::uint64_t) + text.size();
    SafetensorsHeader header = parse_header(text, file.size() - begin);
    return {std::move(file), std::move(header), begin};
  });
}

void WeightFiles::add(std::size_t file) {
  const auto& entries = files_[file].header.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto [place, is_new] = places_.emplace(entries[i].name, FileEntry{file, i});
    check_input(is_new, "{}: tensor '{}' is also in {}", files_[file].file.path().string(),
                escaped(entries[i].name), files_[place->second.file].file.path().string());
  }
}

void WeightFiles::read_index(const fs::path& index) {
  const WeightMap map = read_weight_map(index);
  const std::vector<fs::path> paths = files_of(map, index);
  std::vector<SafetensorsHeader> headers;
  for (const fs::path& path : paths) {
    files_.push_back(open(path));
    add(files_.size() - 1);
    headers.push_back(files_.back().header);
  }
  check_indexed(map, index, headers, paths);
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

Metadata WeightFiles::metadata() const { return without_checksums(files_.front().header.metadata); }

const TensorEntry& WeightFiles::entry(const std::string& name) const {
  const FileEntry& place = places_.at(name);
  return files_[place.file].header.entries[place.entry];
}

const fs::path& WeightFiles::file_of(const std::string& name) const {
  return files_[places_.at(name).file].file.path();
}

void WeightFiles::check_fit_memory() const {
  std::uint64_t bytes = 0;
  for (const File& file : files_) bytes += file.file.size();
  sys::check_fits_memory(files_.front().file.path(), bytes);
}

at::Tensor WeightFiles::read(const std::string& name, bool verify) const {
  const File& file = files_[places_.at(name).file];
  const TensorEntry& entry = this->entry(name);
  return in_file(file.file.path(), [&] {
    at::Tensor tensor = new_tensor(entry);
    std::span<std::byte> bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
    check_input(file.file.read_at(file.data_begin + entry.begin, bytes) == bytes.size(),
                "tensor '{}' cannot be read: the file became shorter", escaped(name));
    if (verify && checksum_in(file.header.metadata, entry) != nullptr)
      compare_checksum(file.header.metadata, entry, crc32_of(bytes));
    return tensor;
  });
}

namespace {

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
  for (const fs::path& file : sys::entries_in(folder)) {
    const std::string name = file.filename().string();
    const bool is_ours = name == model_file || name == index_file || std::regex_match(name, shard);
    if (is_ours && !names.contains(name)) sys::remove_all(file);
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
  if (config) sys::remove_all(folder / "config.json");
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

Safetensors read_safetensors(const fs::path& path, SafetensorsReading how) {
  const WeightFiles files(path.parent_path(), path.filename().string());
  Safetensors found{.tensors = {}, .metadata = files.metadata()};
  if (!how.tensors) return found;
  files.check_fit_memory();
  for (const std::string& name : files.names())
    found.tensors.emplace(name, files.read(name, how.verify));
  return found;
}

}  // namespace lockstep::checkpoint
