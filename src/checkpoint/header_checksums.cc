#include "checkpoint/header_checksums.h"

#include "base/check.h"
#include "base/visible.h"

#include <set>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view key_begin = "crc32.";

std::string checksum_key(const std::string& tensor) { return formatted("{}{}", key_begin, tensor); }

}  // namespace

std::string checksum_text(std::uint32_t checksum) { return formatted("{:08x}", checksum); }

void check_metadata(const Metadata& metadata) {
  for (const auto& [key, value] : metadata)
    check(!key.starts_with(key_begin),
          "write_safetensors: metadata '{}': names that begin with {} are reserved for checksums",
          visible(key), key_begin);
}

void add_checksums(SafetensorsHeader& header, std::span<const std::uint32_t> checksums) {
  for (std::size_t i = 0; i < header.entries.size(); ++i)
    header.metadata[checksum_key(header.entries[i].name)] = checksum_text(checksums[i]);
}

const std::string* checksum_in(const Metadata& metadata, const TensorEntry& entry) {
  auto found = metadata.find(checksum_key(entry.name));
  return found == metadata.end() ? nullptr : &found->second;
}

void compare_checksum(const Metadata& metadata, const TensorEntry& entry, std::uint32_t found) {
  const std::string* expected = checksum_in(metadata, entry);
  if (expected == nullptr) return;
  check_input(checksum_text(found) == *expected,
              "tensor '{}' is damaged: expected {} bytes with crc32 {}, found {}",
              visible(entry.name), entry.end - entry.begin, visible(*expected, 16),
              checksum_text(found));
}

void check_checksums(const SafetensorsHeader& header) {
  std::set<std::string> names;
  for (const auto& [key, value] : header.metadata)
    if (key.starts_with(key_begin)) names.insert(key.substr(key_begin.size()));
  if (names.empty()) return;
  for (const TensorEntry& entry : header.entries)
    check_input(names.erase(entry.name) == 1,
                "tensor '{}' has no checksum, but other tensors of the file have one",
                visible(entry.name));
  check_input(names.empty(), "the file has a checksum for '{}', but no such tensor",
              visible(names.empty() ? "" : *names.begin()));
}

Metadata without_checksums(Metadata metadata) {
  std::erase_if(metadata, [](const auto& item) { return item.first.starts_with(key_begin); });
  return metadata;
}

}  // namespace lockstep::checkpoint
