// How a PartsReader opens its files, and determines which ranks see the same ones.
#include "base/check.h"
#include "base/fingerprint.h"
#include "base/text.h"
#include "base/visible.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/shards.h"

#include <lockstep/comm/together.h>

#include <ATen/ops/from_blob.h>

#include <string_view>
#include <system_error>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// Concatenates texts reversibly.
void append(std::string& all, const std::string& text) {
  all += formatted("{} ", text.size()) + text;
}

std::string take(std::string_view& all) {
  const std::size_t blank = all.find(' ');
  const auto length = static_cast<std::size_t>(parse_integer(all.substr(0, blank)).value_or(0));
  std::string text(all.substr(blank + 1, length));
  all.remove_prefix(blank + 1 + length);
  return text;
}

// The first character of a description.
constexpr char indexed = 'i', alone = 'a';
bool is_indexed(const std::string& description) { return description.front() == indexed; }

}  // namespace

PartsReader::PartsReader(Group& group, const fs::path& path, SeenFiles seen)
    : group_(group), path_(path) {
  std::string text;
  WeightMap map;
  together(group_, [&] {
    if (!group_.is_root()) return;
    if (has_index(path)) map = read_weight_map(index_path(path));
    for (const fs::path& file :
         map.empty() ? std::vector<fs::path>{path} : files_of(map, index_path(path)))
      shards_.push_back(open(file));
    text = description(/*is_indexed=*/!map.empty());
  });
  text = broadcast_text(group_, std::move(text));
  together(group_, [&] {
    if (!group_.is_root()) open_described(text, seen);
  });
  if (is_indexed(text)) path_ = index_path(path);
  exchange_copies(sees());
  together(group_, [&] {
    parse_headers();
    if (!map.empty()) check_indexed(map, path_, headers(), files());
  });
}

std::vector<SafetensorsHeader> PartsReader::headers() const {
  std::vector<SafetensorsHeader> headers(shards_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i)
    headers[shard_of_entry_[i]].entries.push_back(entries_[i]);
  return headers;
}

PartsReader::Shard PartsReader::open(const fs::path& path) {
  Shard shard{.path = path, .text = {}, .file = {}, .metadata = {}};
  shard.file.emplace(path);
  try {
    shard.text = read_header_text(*shard.file);
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", path.string(), problem.what()));
  }
  shard.data_bytes = shard.file->size() - sizeof(std::uint64_t) - shard.text.size();
  return shard;
}

// Describes the files; other ranks with the same description can read the same files.
std::string PartsReader::description(bool is_indexed) const {
  std::string text(1, is_indexed ? indexed : alone);
  for (const Shard& shard : shards_) {
    append(text, shard.path.filename().string());
    append(text, formatted("{}", shard.data_bytes));
    append(text, shard.text);
  }
  return text;
}

void PartsReader::open_described(const std::string& text, SeenFiles seen) {
  bool all_same = seen != SeenFiles::others;
  for (std::string_view left = std::string_view(text).substr(1); !left.empty();) {
    const std::string name = take(left);
    Shard shard{.path = is_indexed(text) ? path_.parent_path() / name : path_,
                .text = {},
                .file = {},
                .metadata = {}};
    shard.data_bytes = static_cast<std::uint64_t>(parse_integer(take(left)).value_or(0));
    shard.text = take(left);
    if (all_same) open_as_described(shard, seen, all_same);
    shards_.push_back(std::move(shard));
  }
  if (all_same) return;
  for (Shard& shard : shards_) shard.file.reset();
}

void PartsReader::open_as_described(Shard& shard, SeenFiles seen, bool& all_same) {
  std::error_code error;
  if (seen == SeenFiles::unknown && !fs::exists(shard.path, error) && !error) {
    all_same = false;
    return;
  }
  Shard own = open(shard.path);
  const bool is_same = own.text == shard.text;
  check_input(is_same || seen == SeenFiles::unknown,
              "{}: is damaged: expected a copy of rank 0's file, found another header",
              shard.path.string());
  check_input(!is_same || own.data_bytes == shard.data_bytes,
              "{}: is damaged: expected {} bytes of tensors, as rank 0 has, found {}",
              shard.path.string(), shard.data_bytes, own.data_bytes);
  all_same = is_same;
  shard.file = std::move(own.file);
}

// Shards on another disk are not read, so one number is enough for all files.
void PartsReader::exchange_copies(bool sees) {
  std::int64_t copy = no_copy;
  together(group_, [&] {
    std::string identity;
    for (const Shard& shard : shards_)
      if (sees) append(identity, shard.file->identity());
    if (!sees) return;
    copy = static_cast<std::int64_t>(fingerprint(identity));
    if (copy == no_copy) ++copy;
  });
  copies_.resize(static_cast<std::size_t>(group_.size()));
  group_
      .all_gather(at::from_blob(copies_.data(), {group_.size()}, at::kLong),
                  at::from_blob(&copy, {1}, at::kLong), part_call)
      .wait();
}

void PartsReader::parse_headers() {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    try {
      SafetensorsHeader header = parse_header(shard.text, shard.data_bytes);
      shard.metadata = std::move(header.metadata);
      for (TensorEntry& entry : header.entries) {
        auto [place, is_new] = by_name_.emplace(entry.name, entries_.size());
        if (!is_new)
          throw BadInput(
              formatted("tensor '{}' is also in {}", visible(entry.name),
                        shards_[shard_of_entry_[place->second]].path.filename().string()));
        entries_.push_back(std::move(entry));
        shard_of_entry_.push_back(i);
      }
    } catch (const BadInput& problem) {
      throw BadInput(formatted("{}: {}", shard.path.string(), problem.what()));
    }
  }
}

}  // namespace lockstep::checkpoint
