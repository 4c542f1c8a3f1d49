// The keys and values themselves, with what each operation of a Store means; no locks, no waiting.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store {

// Keys and values are within the limits: the callers have checked.
class Table {
 public:
  void set(std::string_view key, std::string_view value);
  // Null when it is not there; valid until the key is changed.
  [[nodiscard]] const std::string* find(std::string_view key) const;
  // BadInput as add_to_number().
  std::int64_t add(std::string_view key, std::int64_t delta);
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired);
  bool erase(std::string_view key);
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix) const;
  // Those of `keys` that are not there, in the same order.
  [[nodiscard]] std::vector<std::string> missing(std::span<const std::string> keys) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace lockstep::store
