#include "checkpoint/shards.h"

#include "base/escaped.h"
#include "base/format.h"
#include "checkpoint/folders.h"
#include "sys/bounded_json.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t most_index_bytes = 256 << 20;

}  // namespace

bool is_name_in_folder(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name != "." && name != ".." &&
         escaped(name, std::string::npos) == name;
}

std::vector<fs::path> shard_paths(const fs::path& path, std::size_t count) {
  if (count == 1) return {path};
  std::vector<fs::path> paths;
  for (std::size_t i = 1; i <= count; ++i)
    paths.push_back(path.parent_path() / formatted("{}-{:05}-of-{:05}{}", path.stem().string(), i,
                                                   count, path.extension().string()));
  return paths;
}

fs::path index_path(const fs::path& path) { return path.string() + index_end; }

fs::path without_index_end(const fs::path& path) {
  std::string text = path.string();
  if (text.ends_with(index_end)) text.resize(text.size() - std::string_view(index_end).size());
  return text;
}

bool has_index(const fs::path& path) {
  std::error_code unknown;  // opening the file will report the error
  return !fs::exists(path, unknown) && fs::exists(index_path(path), unknown);
}

bool has_tensors(const fs::path& path) { return sys::exists(path) || has_index(path); }

std::string index_text(std::span<const SafetensorsHeader> shards, std::span<const fs::path> paths) {
  std::uint64_t bytes = 0;
  WeightMap map;
  for (std::size_t i = 0; i < shards.size(); ++i)
    for (const TensorEntry& entry : shards[i].entries) {
      bytes += entry.end - entry.begin;
      map[entry.name] = paths[i].filename().string();
    }
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, file] : map) files[name] = file;
  nlohmann::ordered_json index{{"metadata", {{"total_size", bytes}}}};
  index["weight_map"] = std::move(files);
  return index.dump(2) + "\n";
}

WeightMap read_weight_map(const fs::path& index) {
  const auto fail = [&](const std::string& what) {
    throw BadInput(formatted("{}: {}", index.string(), what));
  };
  const std::string text = sys::read_plain_file(index, most_index_bytes);
  const nlohmann::json json = in_file(index, [&] { return sys::parse_json(text); });
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object() ||
      json["weight_map"].empty())
    fail("expected an object with a weight_map of tensors and files");
  WeightMap map;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string())
      fail(formatted("weight_map.{}: expected the name of a file", escaped(name)));
    const std::string path = file.get<std::string>();
    if (!is_name_in_folder(path))
      fail(formatted("weight_map.{}: expected a file in this folder, found '{}'", escaped(name),
                     escaped(path, 200)));
    map[name] = path;
  }
  return map;
}

std::vector<fs::path> files_of(const WeightMap& map, const fs::path& index) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  std::vector<fs::path> paths;
  for (const std::string& name : names) paths.push_back(index.parent_path() / name);
  return paths;
}

}  // namespace lockstep::checkpoint
