#include "checkpoint/safetensors_header.h"

#include "base/check.h"
#include "base/format.h"
#include "base/visible.h"
#include "checkpoint/dtype_names.h"
#include "checkpoint/header_checksums.h"
#include "checkpoint/header_events.h"
#include "sys/plain_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace lockstep::checkpoint {
namespace {

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument(formatted(
        "write_safetensors: names and metadata must be UTF-8, found '{}'", visible(text)));
  }
}

std::string quoted_object(const std::map<std::string, std::string>& members) {
  std::string text;
  for (const auto& [key, value] : members)
    text += formatted("{}{}:{}", text.empty() ? '{' : ',', quoted(key), quoted(value));
  return text + '}';
}

void check_names_differ(const std::vector<TensorEntry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const TensorEntry& entry : entries) names.push_back(entry.name);
  std::ranges::sort(names);
  if (auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw BadInput(formatted("header names '{}' twice", visible(*twice)));
}

void check_coverage(const std::vector<TensorEntry>& entries, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != covered)
      throw BadInput(
          formatted("tensor '{}' begins at byte {} of the data, expected {}: {}",
                    visible(entry.name), entry.begin, covered,
                    entry.begin < covered ? "tensors overlap" : "a hole between tensors"));
    covered = entry.end;
  }
  if (covered != data_bytes)
    throw BadInput(
        formatted("the header describes {} bytes of data, the file holds {}", covered, data_bytes));
}

std::string_view written_dtype(const TensorEntry& entry) {
  try {
    return name_of(entry.dtype);
  } catch (const InvalidArgument& problem) {
    throw InvalidArgument(formatted("tensor '{}': {}", visible(entry.name), problem.what()));
  }
}

}  // namespace

std::string format_header(const SafetensorsHeader& header) {
  std::string text = "{";
  auto next = [&] {
    if (text.size() > 1) text += ',';
  };
  if (!header.metadata.empty()) text += "\"__metadata__\":" + quoted_object(header.metadata);
  for (const TensorEntry& entry : header.entries) {
    check(entry.name != "__metadata__",
          "write_safetensors: a tensor cannot be called __metadata__");
    next();
    text +=
        formatted(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quoted(entry.name),
                  written_dtype(entry), listed(entry.shape, ","), entry.begin, entry.end);
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  check(text.size() <= max_header_bytes,
        "write_safetensors: {} tensors take a header of {} bytes, the format has at most {}",
        header.entries.size(), text.size(), max_header_bytes);
  return text;
}

std::string read_header_text(sys::PlainFile& file) {
  std::uint64_t length = 0;
  if (file.read(std::as_writable_bytes(std::span(&length, 1))) < sizeof length)
    throw BadInput(formatted("expected at least 8 bytes, found {}", file.size()));
  std::string begin(sys::file_kind_bytes, '\0');
  begin.resize(file.read_at(0, std::as_writable_bytes(std::span(begin))));
  const std::string_view kind = sys::file_kind(begin, file.size());
  check_input(kind.empty() || kind == sys::safetensors_kind,
              "expected a safetensors file, found {}", kind);
  check_input(length <= max_header_bytes,
              "expected a safetensors file, whose first 8 bytes are the length of a header of at "
              "most {} bytes, found {} there",
              max_header_bytes, length);
  if (file.size() < sizeof length || length > file.size() - sizeof length)
    throw BadInput(formatted("expected a header of {} bytes, the file has {} left", length,
                             file.size() - sizeof length));
  std::string text(length, '\0');
  if (file.read(std::as_writable_bytes(std::span(text))) < length)
    throw BadInput("the header cannot be read: the file became shorter");
  return text;
}

SafetensorsHeader parse_header(std::string_view text, std::uint64_t data_bytes) {
  if (text.empty() || text.front() != '{') throw BadInput("header does not begin with '{'");
  // The parser would take a NUL for the end of the text.
  if (std::size_t place = text.find('\0'); place != std::string_view::npos)
    throw BadInput(formatted("header is not JSON: a NUL at byte {}", place));
  HeaderEvents events;
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  if (text[text.find_last_not_of(' ')] != '}')
    throw BadInput("after the header's object: expected only spaces, found other bytes");
  SafetensorsHeader header = events.take();
  std::ranges::sort(header.entries, [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_names_differ(header.entries);
  check_coverage(header.entries, data_bytes);
  check_checksums(header);
  check_input(
      !header.metadata.contains("DCP_SHARDING_INFO"),
      "has parts of tensors, as written by PyTorch's "
      "HuggingFaceStorageWriter(save_distributed=True): write them with enable_consolidation=True");
  return header;
}

}  // namespace lockstep::checkpoint
