#include "hub/weight_files.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/checksum.h"
#include "checkpoint/header_checksums.h"
#include "checkpoint/shards.h"

#include <ATen/ops/empty.h>

#include <span>
#include <utility>

namespace lockstep::hub {
namespace fs = std::filesystem;

WeightFiles::WeightFiles(const fs::path& folder) {
  const fs::path one = folder / "model.safetensors";
  if (checkpoint::has_index(one)) {
    read_index(checkpoint::index_path(one));
    return;
  }
  files_.push_back(open(one));
  add(0);
}

WeightFiles::File WeightFiles::open(const fs::path& path) {
  sys::PlainFile file(path);
  try {
    std::string text = checkpoint::read_header_text(file);
    const std::uint64_t begin = sizeof(std::uint64_t) + text.size();
    checkpoint::SafetensorsHeader header = checkpoint::parse_header(text, file.size() - begin);
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

const checkpoint::TensorEntry& WeightFiles::entry(const std::string& name) const {
  const Place& place = places_.at(name);
  return files_[place.file].header.entries[place.entry];
}

const fs::path& WeightFiles::file_of(const std::string& name) const {
  return files_[places_.at(name).file].file.path();
}

at::Tensor WeightFiles::read(const std::string& name) const {
  const File& file = files_[places_.at(name).file];
  const checkpoint::TensorEntry& entry = this->entry(name);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  std::span<std::byte> bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  check_input(file.file.read_at(file.data_begin + entry.begin, bytes) == bytes.size(),
              "{}: tensor '{}' cannot be read: the file became shorter", file.file.path().string(),
              visible(name));
  try {
    if (checkpoint::checksum_in(file.header.metadata, entry) != nullptr)
      checkpoint::compare_checksum(file.header.metadata, entry, checkpoint::crc32_of(bytes));
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", file.file.path().string(), problem.what()));
  }
  return tensor;
}

}  // namespace lockstep::hub
