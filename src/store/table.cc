#include "store/table.h"

#include "store/limits.h"

namespace lockstep::store {

void Table::set(std::string_view key, std::string_view value) {
  auto place = values_.find(key);
  if (place == values_.end()) {
    values_.emplace(key, value);
  } else {
    place->second = value;
  }
}

const std::string* Table::find(std::string_view key) const {
  auto place = values_.find(key);
  return place == values_.end() ? nullptr : &place->second;
}

std::int64_t Table::add(std::string_view key, std::int64_t delta) {
  const std::string* value = find(key);
  std::int64_t sum = add_to_number(key, value != nullptr ? *value : "0", delta);
  set(key, std::to_string(sum));
  return sum;
}

std::string Table::compare_set(std::string_view key, std::string_view expected,
                               std::string_view desired) {
  const std::string* value = find(key);
  if ((value != nullptr ? *value : "") != expected) return value != nullptr ? *value : "";
  set(key, desired);
  return std::string(desired);
}

bool Table::erase(std::string_view key) {
  auto place = values_.find(key);
  if (place == values_.end()) return false;
  values_.erase(place);
  return true;
}

std::vector<std::string> Table::keys(std::string_view prefix) const {
  std::vector<std::string> found;
  for (auto place = values_.lower_bound(prefix); place != values_.end(); ++place) {
    if (!place->first.starts_with(prefix)) break;
    found.push_back(place->first);
  }
  return found;
}

std::vector<std::string> Table::missing(std::span<const std::string> keys) const {
  std::vector<std::string> found;
  for (const std::string& key : keys) {
    if (find(key) == nullptr) found.push_back(key);
  }
  return found;
}

}  // namespace lockstep::store
