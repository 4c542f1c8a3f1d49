// Parses JSON from a file that may be damaged or malicious. Only for layers that link
// nlohmann_json.
#pragma once

#include "base/escaped.h"
#include "base/format.h"

#include <lockstep/base/error.h>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace lockstep::sys {

// Limits for a JSON text. The parsed tree can take a hundred times the memory of the text: 76 bytes
// per "[", about 100 per member of an object, 16 per element of a list.
struct JsonLimits {
  int depth = 8;
  std::int64_t members = 2 << 20;
  std::int64_t values = 16 << 20;
};

// The text is not JSON, has trailing characters, or has a duplicate key in an object, which readers
// resolve differently. (A text beyond the limits is a plain BadInput.)
class NotJson : public BadInput {
  using BadInput::BadInput;
};

// Returns the message of the JSON library without its prefix, as in
// "[json.exception.parse_error.101] text".
[[nodiscard]] inline std::string_view json_problem(const nlohmann::json::exception& error) {
  std::string_view what = error.what();
  if (std::size_t end = what.find("] "); what.starts_with('[') && end != std::string_view::npos)
    what.remove_prefix(end + 2);
  return what;
}

namespace detail {

// Counts the contents of the tree before it is allocated.
class JsonCounter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonCounter(JsonLimits limits) : limits_(limits) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(std::int64_t) override { return value(); }
  bool number_unsigned(std::uint64_t) override { return value(); }
  bool number_float(double, const std::string&) override { return value(); }
  bool string(std::string&) override { return value(); }
  bool binary(nlohmann::json::binary_t&) override { return value(); }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return deeper();
  }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second)
      throw NotJson(formatted("has '{}' twice in one object", escaped(name, 200)));
    return within(++members_ <= limits_.members);
  }
  bool end_object() override {
    keys_.pop_back();
    return depth_-- > 0;
  }
  bool start_array(std::size_t) override { return deeper(); }
  bool end_array() override { return depth_-- > 0; }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    throw NotJson(escaped(json_problem(error), 300));
  }

 private:
  bool value() { return within(++values_ <= limits_.values); }
  bool deeper() { return within(++depth_ <= limits_.depth) && value(); }
  static bool within(bool fits) {
    if (!fits) throw BadInput("nests too deeply or holds too much");
    return true;
  }

  const JsonLimits limits_;
  int depth_ = 0;
  std::int64_t members_ = 0, values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // one set per open object
};

}  // namespace detail

// Parses `text`. Throws BadInput without the name of the file.
[[nodiscard]] inline nlohmann::json parse_json(std::string_view text, JsonLimits limits = {}) {
  // The parser treats a NUL as the end of the text.
  if (std::size_t place = text.find('\0'); place != std::string_view::npos)
    throw NotJson(formatted("a NUL at byte {}", place));
  detail::JsonCounter counter(limits);
  nlohmann::json::sax_parse(text.begin(), text.end(), &counter);
  return nlohmann::json::parse(text.begin(), text.end());
}

// Returns the integer; std::nullopt for any other value and for integers beyond 64 bits. (The JSON
// library itself would truncate 1.5 to 1 and wrap integers that are too large.)
[[nodiscard]] inline std::optional<std::int64_t> integer_of(const nlohmann::json& value) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<std::int64_t>(value.get<std::uint64_t>())
                        : value.is_number_integer();
  return fits ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

}  // namespace lockstep::sys
