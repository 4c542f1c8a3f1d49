// The keys and values themselves, with what each operation of a Store means; no locks, no waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store {

// Each key and value is within the limits: the callers have checked.
class Table {
 public:
  // set(), add() and compare_set() throw BadInput when all would be more than `most_bytes`.
  explicit Table(std::size_t most_bytes = std::numeric_limits<std::size_t>::max())
      : most_bytes_(most_bytes) {}
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
  void make_room(std::string_view key, std::size_t less, std::size_t more);

  std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace lockstep::store
