#include "checkpoint/tensor_files.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "checkpoint/checksum.h"
#include "checkpoint/folders.h"
#include "sys/files.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <memory>
#include <regex>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace lockstep::checkpoint {

namespace fs = std::filesystem;

namespace {

// Concatenates texts reversibly.
void append(std::string& all, const std::string& text) {
  all += formatted("{} ", text.size()) + text;
}

std::string take(std::string_view& all) {
  const std::size_t blank = std::min(all.find(' '), all.size());
  const auto length = parse_integer(all.substr(0, blank));
  const std::size_t left = all.size() - std::min(all.size(), blank + 1);
  if (!length || *length < 0 || static_cast<std::size_t>(*length) > left)
    throw Mismatch("the description of tensor files that rank 0 sends is damaged");
  std::string text(all.substr(blank + 1, static_cast<std::size_t>(*length)));
  all.remove_prefix(blank + 1 + text.size());
  return text;
}

}  // namespace

TensorFiles::TensorFiles(const fs::path& path) : TensorFiles(opened(path)) { parse(); }

TensorFiles TensorFiles::opened(const fs::path& path) {
  TensorFiles files;
  files.path_ = path;
  if (has_index(path)) {
    files.path_ = index_path(path);
    files.index_ = read_weight_map(files.path_);
  }
  for (const fs::path& file :
       files.index_.empty() ? std::vector<fs::path>{path} : files_of(files.index_, files.path_))
    files.shards_.push_back(open(file));
  return files;
}

TensorFiles::Shard TensorFiles::open(const fs::path& path) {
  Shard shard{.path = path, .text = {}, .file = {}, .metadata = {}};
  shard.file.emplace(path);
  shard.text = in_file(path, [&] { return read_header_text(*shard.file); });
  shard.data_bytes = shard.file->size() - sizeof(std::uint64_t) - shard.text.size();
  return shard;
}

std::string TensorFiles::description() const {
  std::string text;
  append(text, path_.filename().string());
  for (const Shard& shard : shards_) {
    append(text, shard.path.filename().string());
    append(text, formatted("{}", shard.data_bytes));
    append(text, shard.text);
  }
  return text;
}

TensorFiles TensorFiles::described(const fs::path& path, const std::string& description) {
  TensorFiles files;
  std::string_view left = description;
  const std::string name = take(left);
  const bool has_index = name.ends_with(index_end);
  files.path_ = has_index ? path.parent_path() / name : path;
  while (!left.empty()) {
    const std::string shard_name = take(left);
    // Without an index, hosts may have copies of the file under names of their own.
    Shard shard{.path = has_index ? path.parent_path() / shard_name : path,
                .text = {},
                .file = {},
                .metadata = {}};
    shard.data_bytes = static_cast<std::uint64_t>(parse_integer(take(left)).value_or(0));
    shard.text = take(left);
    files.shards_.push_back(std::move(shard));
  }
  return files;
}

void TensorFiles::parse() {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    in_file(shard.path, [&] {
      SafetensorsHeader header = parse_header(shard.text, shard.data_bytes);
      shard.metadata = std::move(header.metadata);
      for (TensorEntry& entry : header.entries) {
        const auto [place, is_new] = by_name_.emplace(entry.name, entries_.size());
        if (!is_new)
          throw BadInput(
              formatted("tensor '{}' is also in {}", escaped(entry.name),
                        shards_[shard_of_entry_[place->second]].path.filename().string()));
        entries_.push_back(std::move(entry));
        shard_of_entry_.push_back(i);
      }
    });
  }
  if (!index_.empty()) check_indexed();
}

// Throws BadInput unless the shards have exactly the tensors of the index, each in the given file.
void TensorFiles::check_indexed() const {
  for (const TensorEntry& entry : entries_) {
    const std::string file = shard_of(entry).path.filename().string();
    const auto named = index_.find(entry.name);
    check_input(named != index_.end(), "{}: {} has the tensor '{}', which the index does not name",
                path_.string(), file, escaped(entry.name));
    check_input(named->second == file, "{}: weight_map.{}: expected {}, which has it, found {}",
                path_.string(), escaped(entry.name), file, escaped(named->second, 200));
  }
  for (const auto& [name, file] : index_)
    check_input(by_name_.contains(name), "{}: tensor '{}' is not in {}", path_.string(),
                escaped(name), escaped(file, 200));
}

std::vector<fs::path> TensorFiles::files() const {
  std::vector<fs::path> paths;
  for (const Shard& shard : shards_) paths.push_back(shard.path);
  return paths;
}

const TensorEntry* TensorFiles::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

const TensorFiles::Shard& TensorFiles::shard_of(const TensorEntry& entry) const {
  return shards_[shard_of_entry_[static_cast<std::size_t>(&entry - entries_.data())]];
}

bool TensorFiles::has_checksum(const TensorEntry& entry) const {
  return checksum_in(shard_of(entry).metadata, entry) != nullptr;
}

void TensorFiles::compare(const TensorEntry& entry, std::uint32_t found) const {
  const Shard& shard = shard_of(entry);
  in_file(shard.path, [&] { compare_checksum(shard.metadata, entry, found); });
}

void TensorFiles::check_fit_memory() const {
  std::uint64_t bytes = 0;
  for (const Shard& shard : shards_) bytes += shard.file->size();
  sys::check_fits_memory(shards_.front().path, bytes);
}

void TensorFiles::read_at(const TensorEntry& entry, std::uint64_t offset,
                          std::span<std::byte> bytes) const {
  const Shard& shard = shard_of(entry);
  const std::uint64_t data_begin = sizeof(std::uint64_t) + shard.text.size();
  check_input(shard.file->read_at(data_begin + entry.begin + offset, bytes) == bytes.size(),
              "{}: tensor '{}' cannot be read: the file became shorter", shard.path.string(),
              escaped(entry.name));
}

at::Tensor TensorFiles::read(const TensorEntry& entry, bool verify) const {
  const at::Tensor tensor = in_file(shard_of(entry).path, [&] { return new_tensor(entry); });
  const std::span bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  read_at(entry, 0, bytes);
  if (verify && has_checksum(entry)) compare(entry, crc32_of(bytes));
  return tensor;
}

namespace {

std::vector<TensorSources> divided_weights(const TensorSources& tensors,
                                           std::uint64_t shard_bytes) {
  check(shard_bytes > 0, "write_sharded_safetensors: shard_bytes must be positive, found 0");
  std::vector<TensorSources> shards(1);
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    if (bytes > 0 && bytes + tensor.bytes() > shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().emplace(name, tensor);
  }
  return shards;
}

// Throws SystemError for a folder that is not empty.
void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) throw SystemError("removing " + path.string(), error.value());
}

// Removes files of an older model that are not in `names`.
void remove_other_weights(const fs::path& folder, const std::set<std::string>& names) {
  static const std::regex shard("model-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  for (const fs::path& file : sys::entries_in(folder)) {
    const std::string name = file.filename().string();
    const bool is_ours = name == model_file || name == index_file || std::regex_match(name, shard);
    if (is_ours && !names.contains(name)) remove_file(file);
  }
}

}  // namespace

void write_weight_folder(const fs::path& folder, const TensorSources& tensors,
                         const Metadata& metadata, ShardedWriting how,
                         const std::optional<std::string>& config) {
  const std::vector<TensorSources> shards = divided_weights(tensors, how.shard_bytes);
  const std::vector<fs::path> paths = shard_paths(model_file, shards.size());
  sys::make_directories(folder);
  std::vector<std::pair<std::string, std::unique_ptr<sys::AtomicFile>>> files;
  auto add = [&](const std::string& name) -> sys::AtomicFile& {
    files.emplace_back(name, std::make_unique<sys::AtomicFile>(folder / name));
    return *files.back().second;
  };
  std::vector<SafetensorsHeader> headers;
  for (std::size_t i = 0; i < shards.size(); ++i)
    headers.push_back(
        write_tensors(add(paths[i].string()), shards[i], metadata, {.checksums = how.checksums}));
  if (shards.size() > 1) add(index_file).write(index_text(headers, paths));
  if (config) add("config.json").write(*config);
  std::set<std::string> names;
  for (auto& [name, file] : files) {
    file->flush();
    names.insert(name);
  }
  // From here on, the folder has no model, or one whose files belong together.
  if (config) remove_file(folder / "config.json");
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
  const TensorFiles files(path);
  Safetensors found{.tensors = {}, .metadata = without_checksums(files.metadata())};
  if (!how.tensors) return found;
  files.check_fit_memory();
  for (const TensorEntry& entry : files.entries())
    found.tensors.emplace(entry.name, files.read(entry, how.verify));
  return found;
}

}  // namespace lockstep::checkpoint
