#include "checkpoint/safetensors_header.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "sys/bounded_json.h"
#include "sys/plain_file.h"

#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr std::array<DtypeName, 17> all_dtype_names{{
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
    {"F8_E8M0", c10::ScalarType::Float8_e8m0fnu},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"F32", c10::ScalarType::Float},
    {"F64", c10::ScalarType::Double},
    {"C64", c10::ScalarType::ComplexFloat},
}};

}  // namespace

std::span<const DtypeName> dtype_names() { return all_dtype_names; }

std::string_view name_of(c10::ScalarType dtype) {
  const auto row = std::ranges::find(all_dtype_names, dtype, &DtypeName::dtype);
  check(row != all_dtype_names.end(), "safetensors has no name for dtype {}", c10::toString(dtype));
  return row->name;
}

namespace {

std::optional<c10::ScalarType> dtype_of(std::string_view name) {
  const auto row = std::ranges::find(all_dtype_names, name, &DtypeName::name);
  return row == all_dtype_names.end() ? std::nullopt : std::optional(row->dtype);
}

void check_utf8(const std::string& text) {
  check(is_utf8(text), "write_safetensors: names and metadata must be UTF-8, found '{}'",
        escaped(text));
}

void check_names_differ(const std::vector<TensorEntry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const TensorEntry& entry : entries) names.push_back(entry.name);
  std::ranges::sort(names);
  if (auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw BadInput(formatted("header names '{}' twice", escaped(*twice)));
}

void check_coverage(const std::vector<TensorEntry>& entries, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != covered)
      throw BadInput(
          formatted("tensor '{}' begins at byte {} of the data, expected {}: {}",
                    escaped(entry.name), entry.begin, covered,
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
    throw InvalidArgument(formatted("tensor '{}': {}", escaped(entry.name), problem.what()));
  }
}

constexpr int most_nested = 4;
constexpr std::size_t most_dims = 64;  // the limit of LibTorch's operations

// Returns std::nullopt if the number of bytes overflows, even if a size of 0 makes the product 0:
// the strides would overflow.
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

// Parses a safetensors header by the parser's events, which are converted to entries one after
// another: no tree of the whole text is built, so the time is linear in its length.
// Every event throws BadInput for text that the format does not allow, so all return true. The
// caller checks for duplicate tensor names at the end.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  // The reference library accepts "__metadata__": null.
  bool null() override {
    return (in_metadata_ && state_ == ParserState::entry && depth_ == 1) || scalar("null");
  }

  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }

  bool number_integer(std::int64_t value) override { return scalar(formatted("{}", value)); }

  bool number_unsigned(std::uint64_t value) override {
    const bool is_wanted =
        in_list() && (state_ == ParserState::shape || state_ == ParserState::offsets);
    if (!is_wanted || value > INT64_MAX) return scalar(formatted("{}", value));
    numbers_.push_back(value);
    if (state_ == ParserState::shape && numbers_.size() > most_dims)
      fail(formatted("shape has more than {} dims", most_dims));
    if (state_ == ParserState::offsets && numbers_.size() > 2)
      fail(formatted("data_offsets must be [begin, end], found [{}, ...", listed(numbers_, ", ")));
    return true;
  }

  bool number_float(double, const std::string& text) override { return scalar(escaped(text, 80)); }

  bool string(std::string& value) override {
    if (state_ == ParserState::metadata && depth_ == 2) {
      header_.metadata.emplace(metadata_key_, std::move(value));
      return true;
    }
    if (state_ != ParserState::dtype) return scalar(formatted("\"{}\"", escaped(value, 80)));
    const std::optional<c10::ScalarType> dtype = dtype_of(value);
    if (!dtype) fail(formatted("unknown dtype \"{}\"", escaped(value, 80)));
    entry_.dtype = *dtype;
    return true;
  }

  bool binary(nlohmann::json::binary_t&) override { return scalar("bytes"); }

  // The value of a key of the root must be an object; those of shape and data_offsets must be
  // lists.
  bool start_object(std::size_t) override {
    if (depth_ >= 2 && state_ != ParserState::ignored) scalar("an object");
    open("an object");
    if (depth_ == 1) return true;
    if (depth_ == 2 && in_metadata_) state_ = ParserState::metadata;
    if (depth_ == 2) {
      entry_.shape.clear();
      has_dtype_ = has_shape_ = has_offsets_ = false;
    }
    keys_[depth_].clear();
    return true;
  }

  bool key(std::string& value) override {
    if (depth_ == 1) {
      in_metadata_ = value == "__metadata__";
      if (in_metadata_ && std::exchange(has_metadata_, true))
        throw BadInput("header names '__metadata__' twice");
      state_ = ParserState::entry;
      if (!in_metadata_) entry_.name = std::move(value);
      return true;
    }
    check_once(value);
    if (depth_ > 2) return true;
    if (in_metadata_) {
      metadata_key_ = std::move(value);
    } else if (value == "dtype") {
      state_ = ParserState::dtype;
      has_dtype_ = true;
    } else if (value == "shape") {
      state_ = ParserState::shape;
      has_shape_ = true;
    } else if (value == "data_offsets") {
      state_ = ParserState::offsets;
      has_offsets_ = true;
    } else {
      state_ = ParserState::ignored;
    }
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) finish_entry();
    if (depth_ == 1) state_ = ParserState::root;
    return true;
  }

  bool start_array(std::size_t) override {
    const bool is_list =
        depth_ == 2 && (state_ == ParserState::shape || state_ == ParserState::offsets);
    if (!is_list && state_ != ParserState::ignored) scalar("a list");
    open("a list");
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    --depth_;
    if (depth_ > 2) return true;
    if (state_ == ParserState::shape) {
      entry_.shape.assign(numbers_.begin(), numbers_.end());
    } else if (state_ == ParserState::offsets) {
      if (numbers_.size() != 2 || numbers_[0] > numbers_[1])
        fail(formatted("data_offsets must be [begin, end], found [{}]", listed(numbers_, ", ")));
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    throw BadInput(formatted("header is not JSON: {}", escaped(sys::json_problem(error), 300)));
  }

  // Returns the parsed header, in the order of the text.
  [[nodiscard]] SafetensorsHeader take() { return std::move(header_); }

 private:
  // The meaning of a value, determined by the keys that lead to it.
  enum class ParserState { root, entry, metadata, dtype, shape, offsets, ignored };

  // Handles a value that is neither a list nor an object; `shown` is its text in messages.
  bool scalar(std::string_view shown) {
    switch (state_) {
      case ParserState::root:
      case ParserState::entry:
        if (in_metadata_)
          throw BadInput(formatted("__metadata__ must be an object of strings, found {}", shown));
        fail(formatted("expected an object, found {}", shown));
      case ParserState::metadata:
        throw BadInput(formatted("__metadata__ '{}' must be a string, found {}",
                                 escaped(metadata_key_), shown));
      case ParserState::dtype:
        fail(formatted("unknown dtype {}", shown));
      case ParserState::shape:
      case ParserState::offsets:
        fail_list(shown);
      case ParserState::ignored:
        return true;
    }
    return true;
  }

  void open(std::string_view shown) {
    if (++depth_ > most_nested)
      throw BadInput(formatted("header is nested too deeply: {} at depth {}", shown, depth_));
  }

  void finish_entry() {
    for (auto [is_there, name] : {std::pair(has_dtype_, "dtype"), std::pair(has_shape_, "shape"),
                                  std::pair(has_offsets_, "data_offsets")})
      if (!is_there) fail(formatted("has no {}", name));
    const std::optional<std::uint64_t> bytes = bytes_of(entry_.dtype, entry_.shape);
    if (!bytes || *bytes != entry_.end - entry_.begin)
      fail(formatted("data_offsets [{}, {}] hold {} bytes, {} [{}] takes {}", entry_.begin,
                     entry_.end, entry_.end - entry_.begin, name_of(entry_.dtype),
                     listed(entry_.shape, ", "),
                     bytes ? std::to_string(*bytes) : "more than 2^63"));
    header_.entries.push_back(std::move(entry_));
  }

  void check_once(const std::string& key) {
    if (!keys_[depth_].insert(key).second)
      throw BadInput(formatted("header names '{}' twice", escaped(key)));
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw BadInput(formatted("tensor '{}': {}", escaped(entry_.name), what));
  }

  [[noreturn]] void fail_list(std::string_view found) const {
    fail(formatted("{} must be a list of integers, found {}{}",
                   state_ == ParserState::shape ? "shape" : "data_offsets", found,
                   in_list() ? " in it" : ""));
  }

  [[nodiscard]] bool in_list() const { return depth_ == 3; }

  SafetensorsHeader header_;
  int depth_ = 0;  // number of open objects and lists
  ParserState state_ = ParserState::root;
  bool in_metadata_ = false, has_metadata_ = false;
  std::string metadata_key_;
  TensorEntry entry_;
  std::vector<std::uint64_t> numbers_;  // of the current list
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<std::set<std::string>> keys_{5};  // of the open object at each depth
};

}  // namespace

at::Tensor new_tensor(const TensorEntry& entry) {
  try {
    return at::empty(entry.shape, at::TensorOptions(entry.dtype));
  } catch (const std::exception&) {  // c10::Error, with a stack trace
    throw BadInput(formatted("tensor '{}': its {} bytes could not be allocated",
                             escaped(entry.name), entry.end - entry.begin));
  }
}

std::string format_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [key, value] : header.metadata) {
    check_utf8(key);
    check_utf8(value);
  }
  if (!header.metadata.empty()) object["__metadata__"] = header.metadata;
  // Appended without a search for an entry of the same name, which would take quadratic time.
  auto& members = object.get_ref<nlohmann::ordered_json::object_t&>();
  members.reserve(members.size() + header.entries.size());
  for (const TensorEntry& entry : header.entries) {
    check(entry.name != "__metadata__",
          "write_safetensors: a tensor cannot be called __metadata__");
    check_utf8(entry.name);
    members.emplace_back(entry.name,
                         nlohmann::ordered_json{{"dtype", written_dtype(entry)},
                                                {"shape", entry.shape},
                                                {"data_offsets", {entry.begin, entry.end}}});
  }
  std::string text = object.dump();
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

namespace {

constexpr std::string_view key_begin = "crc32.";

std::string checksum_key(const std::string& tensor) { return formatted("{}{}", key_begin, tensor); }

}  // namespace

std::string checksum_text(std::uint32_t checksum) { return formatted("{:08x}", checksum); }

void check_metadata(const Metadata& metadata) {
  for (const auto& [key, value] : metadata)
    check(!key.starts_with(key_begin),
          "write_safetensors: metadata '{}': names that begin with {} are reserved for checksums",
          escaped(key), key_begin);
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
              escaped(entry.name), entry.end - entry.begin, escaped(*expected, 16),
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
                escaped(entry.name));
  check_input(names.empty(), "the file has a checksum for '{}', but no such tensor",
              escaped(names.empty() ? "" : *names.begin()));
}

Metadata without_checksums(Metadata metadata) {
  std::erase_if(metadata, [](const auto& item) { return item.first.starts_with(key_begin); });
  return metadata;
}

}  // namespace lockstep::checkpoint
