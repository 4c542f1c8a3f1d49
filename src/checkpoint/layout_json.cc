#include "checkpoint/layout_json.h"

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/checksum.h"
#include "checkpoint/folders.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shards.h"
#include "checkpoint/write_plan.h"
#include "sys/bounded_json.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
// Increment if a value of layout.json, or a text inside of one, changes its meaning or its form.
constexpr int format_version = 4;
constexpr std::uint64_t most_bytes = 256 << 20;

constexpr const char* own_checksum_key = "crc32";

std::string text_checksum(const std::string& text) {
  return checksum_text(crc32_of(std::as_bytes(std::span(text))));
}

// Returns a checksum of the values that does not depend on their order or on whitespace in the
// file.
std::string checksum_of(const nlohmann::json& values) { return text_checksum(values.dump()); }

// The values of layout.json. Each must have the right JSON type: the library would convert 1.5 to
// an integer, and would wrap integers that are too large.
class JsonFields {
 public:
  JsonFields(fs::path path, const std::string& text) : path_(std::move(path)) {
    try {
      json_ = sys::parse_json(text);
    } catch (const BadInput& error) {
      fail(error.what());
    }
    if (!json_.is_object()) fail("expected an object, found " + shown(json_));
  }

  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    const nlohmann::json& value = at(key);
    const std::optional<std::int64_t> number = sys::integer_of(value);
    if (!number || *number < least || *number > most)
      fail(formatted("{}: expected an integer from {} to {}, found {}", key, least, most,
                     shown(value)));
    return *number;
  }

  [[nodiscard]] Metadata texts(const char* key) const {
    Metadata texts;
    const nlohmann::json& object = at(key);
    if (!object.is_object())
      fail(formatted("{}: expected an object of strings, found {}", key, shown(object)));
    for (const auto& [name, value] : object.items()) {
      if (!value.is_string())
        fail(formatted("{}.{}: expected a string, found {}", key, escaped(name), shown(value)));
      texts[name] = value.get<std::string>();
    }
    return texts;
  }

  [[nodiscard]] std::optional<Metadata> texts_if_there(const char* key) const {
    return json_.contains(key) ? std::optional(texts(key)) : std::nullopt;
  }

  [[nodiscard]] std::map<std::string, std::vector<std::string>> lists_of_texts(
      const char* key) const {
    std::map<std::string, std::vector<std::string>> lists;
    const nlohmann::json& object = at(key);
    if (!object.is_object())
      fail(formatted("{}: expected an object of lists of strings, found {}", key, shown(object)));
    for (const auto& [name, list] : object.items()) {
      const bool is_list = list.is_array() && std::ranges::all_of(list, [](const auto& one) {
                             return one.is_string();
                           });
      if (!is_list)
        fail(formatted("{}.{}: expected a list of strings, found {}", key, escaped(name),
                       list.is_array() ? "other values in it" : shown(list)));
      lists[name] = list.template get<std::vector<std::string>>();
    }
    return lists;
  }

  [[nodiscard]] std::vector<MeshAxis> axes(const char* key) const {
    constexpr int most = 1 << 20;
    std::vector<MeshAxis> axes;
    const nlohmann::json& list = at(key);
    if (!list.is_array())
      fail(formatted("{}: expected a list of axes, found {}", key, shown(list)));
    for (const nlohmann::json& axis : list) {
      const bool is_axis = axis.is_object() && axis.contains("axis") && axis["axis"].is_string() &&
                           axis.contains("size") && axis["size"].is_number_unsigned() &&
                           axis["size"] >= 1 && axis["size"] <= most;
      if (!is_axis)
        fail(formatted(
            "{}: expected {{\"axis\": NAME, \"size\": 1 to {}}}, found {}", key, most,
            escaped(axis.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 80)));
      axes.push_back({axis["axis"].get<std::string>(), axis["size"].get<int>()});
    }
    return axes;
  }

  void check_format() const {
    const nlohmann::json& found = at("format");
    if (!found.is_number_integer())
      fail(formatted("expected format {}, found {}", format_version, shown(found)));
    if (found != format_version)
      fail(
          formatted("has format {}, of {} version of Lockstep; this version reads format {}: "
                    "continue with the version that saved it",
                    shown(found), found < format_version ? "an older" : "a newer", format_version));
  }

  // Call last: the other checks have more specific messages.
  void check_checksum() const {
    const nlohmann::json& expected = at(own_checksum_key);
    nlohmann::json rest = json_;
    rest.erase(own_checksum_key);
    const std::string found = checksum_of(rest);
    if (expected != found)
      fail(formatted("is damaged: expected crc32 {}, found {}", shown(expected), found));
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw BadInput(formatted("{}: {}", path_.string(), what));
  }

 private:
  [[nodiscard]] const nlohmann::json& at(const char* key) const {
    auto found = json_.find(key);
    if (found == json_.end()) fail(formatted("has no {}", key));
    return *found;
  }

  static std::string shown(const nlohmann::json& value) {
    if (value.is_structured()) return value.is_array() ? "a list" : "an object";
    return escaped(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 80);
  }

  const fs::path path_;
  nlohmann::json json_;
};

void check_text(const std::string& key, const std::string& text) {
  check(is_utf8(text), "checkpoint: {} must be UTF-8, found '{}'", key, escaped(text));
}

nlohmann::json texts_of(const char* key, const Metadata& texts) {
  for (const auto& [name, text] : texts) {
    check_text(formatted("a name in {}", key), name);
    check_text(formatted("{}.{}", key, name), text);
  }
  return texts;
}

Metadata texts_of_numbers(const std::map<std::string, double>& numbers) {
  Metadata texts;
  for (const auto& [name, number] : numbers) texts[name] = number_text(number);
  return texts;
}

std::map<std::string, double> numbers_in(const JsonFields& fields) {
  std::map<std::string, double> numbers;
  for (const auto& [name, text] : fields.texts_if_there("numbers").value_or(Metadata())) {
    std::optional<double> number = number_in(text);
    if (!number)
      fields.fail(
          formatted("numbers.{}: expected a number, found '{}'", escaped(name), escaped(text, 80)));
    numbers[name] = *number;
  }
  return numbers;
}

// "0-2,5"
std::string ranks_text(const std::vector<PartsBySlice::Holder>& ranks) {
  std::string text;
  for (std::size_t first = 0, next = 0; first < ranks.size(); first = next) {
    for (next = first + 1; next < ranks.size() && ranks[next].rank == ranks[next - 1].rank + 1;)
      ++next;
    text += formatted("{}{}", text.empty() ? "" : ",", ranks[first].rank);
    if (next - first > 1) text += formatted("-{}", ranks[next - 1].rank);
  }
  return text;
}

// Returns "all", "[0, 3] + [4, 3]" or "[0, 3] + [4, 3] elements 4-8"; if the memory is not
// row-major, the last form with " order [1, 0]".
std::string slice_text(const layout::TensorSlice& slice) {
  const bool is_box = slice.numel() == layout::numel_of(slice.box);
  if (slice.is_whole()) return "all";
  std::string text = layout::describe(slice.box);
  if (!is_box) text += formatted(" elements {}-{}", slice.range.begin, slice.range.end - 1);
  if (!is_box && !slice.dim_order.empty())
    text += formatted(" order [{}]", listed(slice.dim_order, ", "));
  return text;
}

nlohmann::json mesh_json(const std::vector<MeshAxis>& mesh) {
  nlohmann::json axes = nlohmann::json::array();
  for (const MeshAxis& axis : mesh) axes.push_back({{"axis", axis.name}, {"size", axis.size}});
  return axes;
}

}  // namespace

std::string number_text(double number) { return formatted("{}", number); }

std::optional<double> number_in(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

std::map<std::string, std::vector<std::string>> parts_text(
    const std::vector<std::vector<Part>>& by_rank) {
  std::map<std::string, PartsBySlice> held;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
    for (const Part& part : by_rank[rank])
      if (part.slice.numel() > 0) held[part.name].add(static_cast<int>(rank), part);
  std::map<std::string, std::vector<std::string>> texts;
  for (const auto& [name, of] : held)
    for (const auto& [part, holders] : of.all())
      texts[name].push_back(formatted("{}: {}", ranks_text(holders), slice_text(part->slice)));
  return texts;
}

std::string file_checksum(const fs::path& file) {
  if (file.string().ends_with(index_end))
    return text_checksum(sys::read_plain_file(file, most_bytes));
  sys::PlainFile opened(file);
  return in_file(file, [&] { return text_checksum(read_header_text(opened)); });
}

bool has_file(const LayoutJson& json, const std::string& name) {
  return json.files.contains(name) || json.files.contains(name + index_end);
}

void seal(LayoutJson& json, const fs::path& folder) {
  json.files.clear();
  for (const fs::path& file : sys::entries_in(folder)) {
    const std::string name = file.filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(index_end))
      json.files[name] = file_checksum(file);
  }
}

void check_sealed(const LayoutJson& json, const fs::path& folder) {
  for (const char* name : tensor_files) {
    if (may_be_missing(name)) continue;
    check_input(has_file(json, name), "{}: files: expected {}, found none",
                (folder / layout_file).string(), name);
  }
  for (const auto& [name, noted] : json.files) {
    const std::string found = file_checksum(folder / name);
    check_input(found == noted,
                "{}: is not the file that {} was saved with: expected a header with crc32 {}, "
                "found {}",
                (folder / name).string(), layout_file, escaped(noted, 16), found);
  }
}

void check_noted(const LayoutJson& json, std::span<const fs::path> files) {
  for (const fs::path& file : files)
    check_input(json.files.contains(file.filename().string()),
                "{}: is not one of the files that {} was saved with", file.string(), layout_file);
}

std::string json_text(const LayoutJson& json) {
  const TrainingState& state = json.state;
  nlohmann::ordered_json object{{"format", format_version},
                                {"step", state.step},
                                {"epoch", state.epoch},
                                {"ranks", state.ranks},
                                {"mesh", mesh_json(json.mesh)},
                                {"numbers", texts_of("numbers", texts_of_numbers(state.numbers))},
                                {"progress", texts_of("progress", state.progress)},
                                {"config", texts_of("config", state.config)}};
  if (json.scheduler) object["scheduler"] = texts_of("scheduler", *json.scheduler);
  if (json.scaler) object["scaler"] = texts_of("scaler", *json.scaler);
  object["parts"] = json.parts;
  object["files"] = texts_of("files", json.files);
  object[own_checksum_key] = checksum_of(nlohmann::json(object));
  std::string text = object.dump(2) + "\n";
  check(text.size() <= most_bytes, "checkpoint: {} has {} bytes, expected at most {}", layout_file,
        text.size(), most_bytes);
  return text;
}

std::string read_json_text(const fs::path& folder) {
  return sys::read_plain_file(folder / layout_file, most_bytes);
}

LayoutJson parse_json_text(const fs::path& folder, const std::string& text) {
  constexpr std::int64_t most_steps = 999'999'999'999'999'999;  // as many digits as names may have
  constexpr std::int64_t most_ranks = 1 << 20;
  const JsonFields fields(folder / layout_file, text);
  fields.check_format();
  LayoutJson json;
  json.state.step = fields.integer("step", 0, most_steps);
  if (std::int64_t named = step_of(folder); named >= 0 && named != json.state.step)
    fields.fail(formatted("step: expected {}, as in the name of the folder, found {}", named,
                          json.state.step));
  json.state.epoch = fields.integer("epoch", 0, most_steps);
  json.state.ranks = static_cast<int>(fields.integer("ranks", 0, most_ranks));
  json.state.numbers = numbers_in(fields);
  json.state.progress = fields.texts("progress");
  json.state.config = fields.texts("config");
  json.scheduler = fields.texts_if_there("scheduler");
  json.scaler = fields.texts_if_there("scaler");
  json.mesh = fields.axes("mesh");
  json.parts = fields.lists_of_texts("parts");
  json.files = fields.texts("files");
  for (const auto& [name, noted] : json.files)
    if (!is_name_in_folder(name))
      fields.fail(formatted("files: expected names of files in this folder, found '{}'",
                            escaped(name, 200)));
  fields.check_checksum();
  return json;
}

TrainingState read_training_state(const std::filesystem::path& folder) {
  return parse_json_text(folder, read_json_text(folder)).state;
}

void verify(const std::filesystem::path& folder) {
  (void)read_training_state(folder);
  Group alone;
  try {
    verify(alone, folder);
  } catch (const CollectiveFailure& failure) {
    throw BadInput(failure.what());
  }
}

}  // namespace lockstep::checkpoint
