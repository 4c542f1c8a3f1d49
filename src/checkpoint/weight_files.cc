#include "checkpoint/weight_files.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/checksum.h"
#include "checkpoint/file_names.h"
#include "checkpoint/header_checksums.h"
#include "sys/bounded_json.h"

#include <ATen/ops/empty.h>

#include <span>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t most_index_bytes = 100'000'000;

// weight_map of an index: a file's name for each tensor, in the index's own folder.
std::map<std::string, std::string> weight_map(const fs::path& index) {
  auto fail = [&](const std::string& what) {
    throw BadInput(formatted("{}: {}", index.string(), what));
  };
  nlohmann::json json;
  try {
    json = sys::parse_json(sys::read_plain_file(index, most_index_bytes));
  } catch (const sys::NotJson& error) {
    fail(error.what());
  }
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object() ||
      json["weight_map"].empty())
    fail("expected an object with a weight_map of tensors and files");
  std::map<std::string, std::string> map;
  for (const auto& [name, file] : json["weight_map"].items()) {
    const std::string shown = visible(name);
    if (!file.is_string()) fail(formatted("weight_map.{}: expected the name of a file", shown));
    const std::string path = file.get<std::string>();
    if (path.empty() || path.find('/') != std::string::npos || path == "." || path == "..")
      fail(formatted("weight_map.{}: expected a file in this folder, found '{}'", shown,
                     visible(path)));
    map[name] = path;
  }
  return map;
}

}  // namespace

WeightFiles::WeightFiles(const fs::path& folder, const std::string& name) {
  const fs::path one = folder / name, index = folder / (name + ".index.json");
  if (fs::exists(index) && !fs::exists(one)) {
    read_index(index);
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
  const std::map<std::string, std::string> map = weight_map(index);
  std::map<std::string, std::size_t> numbers;
  for (const auto& [name, file] : map) {
    if (!numbers.try_emplace(file, files_.size()).second) continue;
    files_.push_back(open(index.parent_path() / file));
    add(files_.size() - 1);
  }
  for (const auto& [name, file] : map) {
    auto place = places_.find(name);
    check_input(place != places_.end() && place->second.file == numbers.at(file),
                "{}: tensor '{}' is not in {}", index.string(), visible(name), visible(file));
  }
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
    if (checksum_in(file.header, entry) != nullptr)
      compare_checksum(file.header, entry, crc32_of(bytes));
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", file.file.path().string(), problem.what()));
  }
  return tensor;
}

}  // namespace lockstep::checkpoint
