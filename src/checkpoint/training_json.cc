#include "checkpoint/training_json.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/file_names.h"
#include "checkpoint/folders.h"
#include "checkpoint/header_checksums.h"
#include "checkpoint/safetensors_header.h"
#include "sys/bounded_json.h"
#include "sys/plain_file.h"

#include "checkpoint/checksum.h"

#include <charconv>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr int format_version = 2;
constexpr const char* file_name = "training.json";

constexpr const char* own_checksum_key = "crc32";

// Of the values, in whatever order and with whatever blanks they are written.
std::string checksum_of(const nlohmann::json& values) {
  const std::string text = values.dump();
  return checksum_text(crc32_of(std::as_bytes(std::span(text))));
}

// The values of training.json. Each must have its own type: the JSON library would make an integer
// of 1.5, and wrap what is too large.
class Fields {
 public:
  Fields(fs::path path, const std::string& text) : path_(std::move(path)) {
    try {
      json_ = sys::parse_json(text);
    } catch (const BadInput& error) {
      fail(error.what());
    }
    if (!json_.is_object()) fail("expected an object, found " + shown(json_));
  }

  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    const nlohmann::json& value = at(key);
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most)
      fail(formatted("{}: expected an integer from {} to {}, found {}", key, least, most,
                     shown(value)));
    return value.get<std::int64_t>();
  }

  [[nodiscard]] Metadata texts(const char* key) const {
    Metadata texts;
    const nlohmann::json& object = at(key);
    if (!object.is_object())
      fail(formatted("{}: expected an object of texts, found {}", key, shown(object)));
    for (const auto& [name, value] : object.items()) {
      if (!value.is_string())
        fail(formatted("{}.{}: expected a text, found {}", key, visible(name), shown(value)));
      texts[name] = value.get<std::string>();
    }
    return texts;
  }

  [[nodiscard]] std::optional<Metadata> texts_if_there(const char* key) const {
    return json_.contains(key) ? std::optional(texts(key)) : std::nullopt;
  }

  void check_format() const {
    const nlohmann::json& found = at("format");
    if (!found.is_number_integer() || found != format_version)
      fail(formatted("expected format {}, found {}", format_version, shown(found)));
  }

  // Last, because what else is wrong says more.
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
    return visible(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 80);
  }

  const fs::path path_;
  nlohmann::json json_;
};

void check_text(const std::string& key, const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument(
        formatted("checkpoint: {} must be UTF-8, found '{}'", key, visible(text)));
  }
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

std::map<std::string, double> numbers_in(const Fields& fields) {
  std::map<std::string, double> numbers;
  for (const auto& [name, text] : fields.texts_if_there("numbers").value_or(Metadata())) {
    std::optional<double> number = number_in(text);
    if (!number)
      fields.fail(
          formatted("numbers.{}: expected a number, found '{}'", visible(name), visible(text, 80)));
    numbers[name] = *number;
  }
  return numbers;
}

}  // namespace

std::string number_text(double number) { return formatted("{}", number); }

std::optional<double> number_in(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

std::string header_checksum(const fs::path& file) {
  sys::PlainFile opened(file);
  try {
    const std::string text = read_header_text(opened);
    return checksum_text(crc32_of(std::as_bytes(std::span(text))));
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", file.string(), problem.what()));
  }
}

void seal(TrainingJson& json, const fs::path& folder) {
  for (const char* name : tensor_files)
    if (fs::exists(folder / name)) json.files[name] = header_checksum(folder / name);
}

void check_sealed(const TrainingJson& json, const fs::path& folder) {
  for (const char* name : tensor_files) {
    auto noted = json.files.find(name);
    const bool may_be_missing =
        name == std::string_view(ignored_file) || name == std::string_view(own_file);
    if (noted == json.files.end() && may_be_missing) continue;
    check_input(noted != json.files.end(), "{}: files: expected {}, found none",
                (folder / file_name).string(), name);
    const std::string found = header_checksum(folder / name);
    check_input(found == noted->second,
                "{}: is not the file that {} was saved with: expected a header with crc32 {}, "
                "found {}",
                (folder / name).string(), file_name, visible(noted->second, 16), found);
  }
}

std::string json_text(const TrainingJson& json) {
  const TrainingState& state = json.state;
  nlohmann::ordered_json object{{"format", format_version},
                                {"step", state.step},
                                {"epoch", state.epoch},
                                {"ranks", state.ranks},
                                {"numbers", texts_of("numbers", texts_of_numbers(state.numbers))},
                                {"progress", texts_of("progress", state.progress)},
                                {"config", texts_of("config", state.config)}};
  if (json.scheduler) object["scheduler"] = texts_of("scheduler", *json.scheduler);
  if (json.scaler) object["scaler"] = texts_of("scaler", *json.scaler);
  object["files"] = texts_of("files", json.files);
  object[own_checksum_key] = checksum_of(nlohmann::json(object));
  return object.dump(2) + "\n";
}

std::string read_json_text(const fs::path& folder) {
  constexpr std::uint64_t most_bytes = 64 << 20;
  return sys::read_plain_file(folder / file_name, most_bytes);
}

TrainingJson parse_json_text(const fs::path& folder, const std::string& text) {
  constexpr std::int64_t most_steps = 999'999'999'999'999'999;  // as many digits as names may have
  constexpr std::int64_t most_ranks = 1 << 20;
  const Fields fields(folder / file_name, text);
  fields.check_format();
  TrainingJson json;
  json.state.step = fields.integer("step", 0, most_steps);
  if (std::int64_t named = step_of(folder); named >= 0 && named != json.state.step)
    fields.fail(
        formatted("step: expected {}, as the folder is called, found {}", named, json.state.step));
  json.state.epoch = fields.integer("epoch", 0, most_steps);
  json.state.ranks = static_cast<int>(fields.integer("ranks", 0, most_ranks));
  json.state.numbers = numbers_in(fields);
  json.state.progress = fields.texts("progress");
  json.state.config = fields.texts("config");
  json.scheduler = fields.texts_if_there("scheduler");
  json.scaler = fields.texts_if_there("scaler");
  json.files = fields.texts("files");
  fields.check_checksum();
  return json;
}

}  // namespace lockstep::checkpoint
