#include "store/limits.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"

namespace lockstep::store {

void check_key(std::string_view key) {
  check_input(!key.empty() && key.size() <= Store::max_key_bytes,
              "store: expected a key of 1 to {} bytes, found {}", Store::max_key_bytes, key.size());
}

void check_value(std::string_view key, std::string_view value) {
  check_input(value.size() <= Store::max_value_bytes,
              "store: expected a value of at most {} for key '{}', found {}",
              format_bytes(Store::max_value_bytes), key,
              format_bytes(static_cast<std::int64_t>(value.size())));
}

std::int64_t add_to_number(std::string_view key, std::string_view value, std::int64_t delta) {
  auto number = parse_integer(value);
  check_input(number.has_value(), "store: add to key '{}' expected a decimal number, found '{}'",
              key, value.substr(0, 40));
  std::int64_t sum = 0;
  check_input(!__builtin_add_overflow(*number, delta, &sum),
              "store: adding {} to {} under key '{}' leaves the range of 64 bits", delta, *number,
              key);
  return sum;
}

Timeout missing_keys(std::span<const std::string> missing, Duration waited) {
  constexpr std::size_t most_named = 5;
  std::string names;
  for (std::size_t i = 0; i < missing.size() && i < most_named; ++i) {
    names += formatted("{}'{}'", i == 0 ? "" : ", ", missing[i]);
  }
  if (missing.size() > most_named) names += formatted(" and {} more", missing.size() - most_named);
  return Timeout(formatted("store: {} {} did not come within {}",
                           missing.size() == 1 ? "key" : "keys", names, format_duration(waited)));
}

}  // namespace lockstep::store
