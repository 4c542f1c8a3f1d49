#include "checkpoint/weight_files.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/checksum.h"
#include "checkpoint/file_names.h"
#include "checkpoint/header_checksums.h"
#include "checkpoint/shards.h"

#include <ATen/ops/empty.h>

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
  try {
    std::string text = read_header_text(file);
    const std::uint64_t begin = sizeof(std::uint64_t) + text.size();
    SafetensorsHeader header = parse_header(text, file.size() - begin);
    return {std::move(file), std::move(header), begin};
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", path.string(), problem.what()));
  }
}

void WeightFiles::add(std::size_t file) {
  const auto& entries = files_[file].header.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto [place, is_new] = places_.emplace(entries[i].name, Place{file, i});
    check_input(is_new, "{}: tensor '{}' is also in {}", files_[file].file.path().string(),
                visible(entries[i].name), files_[place->second.file].file.path().string());
  }
}

void WeightFiles::read_index(const fs::path& index) {
  const checkpoint::WeightMap map = checkpoint::read_weight_map(index);
  const std::vector<fs::path> paths = checkpoint::files_of(map, index);
  std::vector<checkpoint::SafetensorsHeader> headers;
  for (const fs::path& path : paths) {
    files_.push_back(open(path));
    add(files_.size() - 1);
    headers.push_back(files_.back().header);
  }
  checkpoint::check_indexed(map, index, headers, paths);
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

Metadata WeightFiles::metadata() const { return without_checksums(files_.front().header.metadata); }

const TensorEntry& WeightFiles::entry(const std::string& name) const {
  const Place& place = places_.at(name);
  return files_[place.file].header.entries[place.entry];
}

const fs::path& WeightFiles::file_of(const std::string& name) const {
  return files_[places_.at(name).file].file.path();
}

at::Tensor WeightFiles::read(const std::string& name) const {
  const File& file = files_[places_.at(name).file];
  const TensorEntry& entry = this->entry(name);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  std::span<std::byte> bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  check_input(file.file.read_at(file.data_begin + entry.begin, bytes) == bytes.size(),
              "{}: tensor '{}' cannot be read: the file became shorter", file.file.path().string(),
              visible(name));
  try {
    if (checksum_in(file.header.metadata, entry) != nullptr)
      compare_checksum(file.header.metadata, entry, crc32_of(bytes));
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", file.file.path().string(), problem.what()));
  }
  return tensor;
}

}  // namespace lockstep::checkpoint
