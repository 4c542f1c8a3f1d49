#include "checkpoint/safetensors_header.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

struct DtypeName {
  std::string_view name;
  c10::ScalarType dtype;
};

constexpr std::array<DtypeName, 15> dtype_names{{
    {"BOOL", c10::ScalarType::Bool},
    {"U8", c10::ScalarType::Byte},
    {"I8", c10::ScalarType::Char},
    {"I16", c10::ScalarType::Short},
    {"U16", c10::ScalarType::UInt16},
    {"I32", c10::ScalarType::Int},
    {"U32", c10::ScalarType::UInt32},
    {"I64", c10::ScalarType::Long},
    {"U64", c10::ScalarType::UInt64},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"F32", c10::ScalarType::Float},
    {"F64", c10::ScalarType::Double},
}};

std::string_view name_of(c10::ScalarType dtype) {
  auto row = std::ranges::find(dtype_names, dtype, &DtypeName::dtype);
  if (row == dtype_names.end())
    throw InvalidArgument(formatted("safetensors has no name for dtype {}", c10::toString(dtype)));
  return row->name;
}

// nlohmann::json keeps the last of two equal keys; the format forbids them, since readers would
// disagree on the content.
Json parse_unique_keys(std::string_view text) {
  constexpr int most_nested = 3;
  std::array<std::set<std::string>, most_nested + 2> keys_at_depth;
  auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > most_nested) throw BadInput("header is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys_at_depth[depth + 1].clear();
    if (event == Json::parse_event_t::key &&
        !keys_at_depth[depth].insert(parsed.get<std::string>()).second)
      throw BadInput(formatted("header names '{}' twice", parsed.get<std::string>()));
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    throw BadInput(formatted("header is not JSON: {}", error.what()));
  }
}

// The value as a message shows it.
std::string shown(const Json& value) {
  constexpr std::size_t most = 80;
  std::string text = value.dump();
  return text.size() <= most ? text : text.substr(0, most) + "...";
}

// Nothing where a size of 0 hides others whose strides no number holds.
std::optional<std::uint64_t> bytes_of(c10::ScalarType dtype,
                                      const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = c10::elementSize(dtype);
  for (std::int64_t size : shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)),
                               &bytes) ||
        bytes > INT64_MAX)
      return std::nullopt;
  return std::ranges::count(shape, 0) > 0 ? 0 : bytes;
}

class EntryParser {
 public:
  EntryParser(const std::string& name, const Json& fields) : name_(name), fields_(fields) {}

  TensorEntry parse() const {
    if (!fields_.is_object()) fail("expected an object, found " + shown(fields_));
    TensorEntry entry{.name = name_, .dtype = dtype(), .shape = {}};
    for (std::uint64_t size : numbers("shape"))
      entry.shape.push_back(static_cast<std::int64_t>(size));
    std::vector<std::uint64_t> offsets = numbers("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      fail(formatted("data_offsets must be [begin, end], found [{}]", listed(offsets, ", ")));
    entry.begin = offsets[0];
    entry.end = offsets[1];
    check_size(entry);
    return entry;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw BadInput(formatted("tensor '{}': {}", name_, what));
  }

  const Json& field(const char* key) const {
    auto found = fields_.find(key);
    if (found == fields_.end()) fail(formatted("has no {}", key));
    return *found;
  }

  c10::ScalarType dtype() const {
    const Json& value = field("dtype");
    if (value.is_string())
      if (auto row =
              std::ranges::find(dtype_names, value.get_ref<const std::string&>(), &DtypeName::name);
          row != dtype_names.end())
        return row->dtype;
    fail("unknown dtype " + shown(value));
  }

  std::vector<std::uint64_t> numbers(const char* key) const {
    const Json& value = field(key);
    auto good = [](const Json& item) {
      return item.is_number_unsigned() && item.get<std::uint64_t>() <= INT64_MAX;
    };
    if (!value.is_array() || !std::ranges::all_of(value, good))
      fail(formatted("{} must be a list of whole numbers, found {}", key, shown(value)));
    return value.get<std::vector<std::uint64_t>>();
  }

  void check_size(const TensorEntry& entry) const {
    std::optional<std::uint64_t> bytes = bytes_of(entry.dtype, entry.shape);
    if (bytes && *bytes == entry.end - entry.begin) return;
    fail(formatted("data_offsets [{}, {}] hold {} bytes, {} [{}] takes {}", entry.begin, entry.end,
                   entry.end - entry.begin, name_of(entry.dtype), listed(entry.shape, ", "),
                   bytes ? std::to_string(*bytes) : "more than 2^63"));
  }

  const std::string& name_;
  const Json& fields_;
};

void check_coverage(const std::vector<TensorEntry>& entries, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != covered)
      throw BadInput(formatted(
          "tensor '{}' begins at byte {} of the data, expected {}: {}", entry.name, entry.begin,
          covered, entry.begin < covered ? "tensors overlap" : "a hole between tensors"));
    covered = entry.end;
  }
  if (covered != data_bytes)
    throw BadInput(
        formatted("the header describes {} bytes of data, the file holds {}", covered, data_bytes));
}

std::map<std::string, std::string> parse_metadata(const Json& fields) {
  std::map<std::string, std::string> metadata;
  if (!fields.is_object())
    throw BadInput("__metadata__ must be an object of strings, found " + shown(fields));
  for (const auto& [key, value] : fields.items()) {
    if (!value.is_string())
      throw BadInput(formatted("__metadata__ '{}' must be a string, found {}", key, shown(value)));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

}  // namespace

std::string format_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const TensorEntry& entry : header.entries)
    json[entry.name] = {{"dtype", name_of(entry.dtype)},
                        {"shape", entry.shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

SafetensorsHeader parse_header(std::string_view text, std::uint64_t data_bytes) {
  if (text.empty() || text.front() != '{') throw BadInput("header does not begin with '{'");
  Json json = parse_unique_keys(text);
  SafetensorsHeader header;
  for (const auto& [name, fields] : json.items()) {
    if (name == "__metadata__")
      header.metadata = parse_metadata(fields);
    else
      header.entries.push_back(EntryParser(name, fields).parse());
  }
  std::ranges::sort(header.entries, [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_coverage(header.entries, data_bytes);
  return header;
}

}  // namespace lockstep::checkpoint
