#include <lockstep/store/prefix_store.h>

#include "base/check.h"

#include <utility>

namespace lockstep {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> below)
    : prefix_(std::move(prefix)), below_(std::move(below)) {
  check(below_ != nullptr, "PrefixStore: the store for prefix '{}' must not be null", prefix_);
}

std::string PrefixStore::full(std::string_view key) const {
  check_input(!key.empty(), "store: expected a key of 1 to {} bytes, found 0", max_key_bytes);
  return prefix_ + std::string(key);
}

void PrefixStore::set(std::string_view key, std::string_view value) {
  below_->set(full(key), value);
}

std::optional<std::string> PrefixStore::try_get(std::string_view key) {
  return below_->try_get(full(key));
}

std::string PrefixStore::get(std::string_view key, Deadline deadline) {
  return below_->get(full(key), deadline);
}

void PrefixStore::wait(std::span<const std::string> keys, Deadline deadline) {
  std::vector<std::string> names;
  for (const std::string& key : keys) names.push_back(full(key));
  below_->wait(names, deadline);
}

std::int64_t PrefixStore::add(std::string_view key, std::int64_t delta) {
  return below_->add(full(key), delta);
}

std::string PrefixStore::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  return below_->compare_set(full(key), expected, desired);
}

bool PrefixStore::erase(std::string_view key) { return below_->erase(full(key)); }

std::vector<std::string> PrefixStore::keys(std::string_view prefix) {
  std::vector<std::string> found = below_->keys(prefix_ + std::string(prefix));
  for (std::string& key : found) key.erase(0, prefix_.size());
  return found;
}

}  // namespace lockstep
