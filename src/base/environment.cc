#include "base/environment.h"

#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cstdlib>

namespace lockstep::environment {
namespace {

BadInput not_understood(const std::string& name, std::string_view expected,
                        std::string_view found) {
  return BadInput(formatted("{}: expected {}, found '{}'", name, expected, found));
}

BadInput not_set(const std::string& name, std::string_view why) {
  return BadInput(formatted("{} is not set{}{}", name, why.empty() ? "" : ", ", why));
}

std::string range_in_words(std::int64_t least, std::int64_t most) {
  bool no_least = least == std::numeric_limits<std::int64_t>::min();
  bool no_most = most == std::numeric_limits<std::int64_t>::max();
  if (no_least && no_most) return "an integer";
  if (no_most) return formatted("an integer of at least {}", least);
  if (no_least) return formatted("an integer of at most {}", most);
  return formatted("an integer from {} to {}", least, most);
}

template <typename Value>
std::optional<Value> parsed(const std::string& name,
                            std::optional<Value> (*parse)(std::string_view),
                            std::string_view expected) {
  const auto found = text(name);
  if (!found) return std::nullopt;
  auto value = parse(*found);
  if (!value) throw not_understood(name, expected, *found);
  return value;
}

}  // namespace

std::optional<std::string> text(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<std::int64_t> integer(const std::string& name, std::int64_t least,
                                    std::int64_t most) {
  auto found = text(name);
  if (!found) return std::nullopt;
  auto value = parse_integer(*found);
  if (!value || *value < least || *value > most)
    throw not_understood(name, range_in_words(least, most), *found);
  return value;
}

std::optional<bool> flag(const std::string& name) {
  return parsed(name, parse_flag, "1, true, yes, on, 0, false, no or off");
}

std::optional<std::int64_t> bytes(const std::string& name) {
  return parsed(name, parse_bytes, "a number of bytes such as 4096, 12MiB or 4GiB");
}

std::optional<Duration> duration(const std::string& name) {
  return parsed(name, parse_duration, "a duration such as 1m30s, 250ms or 90 (seconds)");
}

std::optional<std::string> one_of(const std::string& name,
                                  std::span<const std::string_view> words) {
  auto found = text(name);
  if (!found) return std::nullopt;
  if (std::ranges::find(words, *found) != words.end()) return found;
  throw BadInput(name + ": " + unknown_name("value", *found, words));
}

std::string required_text(const std::string& name, std::string_view why) {
  auto value = text(name);
  if (!value) throw not_set(name, why);
  return *value;
}

std::int64_t required_integer(const std::string& name, std::int64_t least, std::int64_t most,
                              std::string_view why) {
  auto value = integer(name, least, most);
  if (!value) throw not_set(name, why);
  return *value;
}

}  // namespace lockstep::environment
