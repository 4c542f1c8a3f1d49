// ForwardingStore: passes every call on to another store. Base class of stores that override some
// calls.
#pragma once

#include <lockstep/store/store.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> below) : below_(std::move(below)) {}

  void set(std::string_view key, std::string_view value) override { below_->set(key, value); }
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key) override {
    return below_->try_get(key);
  }
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override {
    return below_->get(key, deadline);
  }
  void wait(std::span<const std::string> keys, Deadline deadline) override {
    below_->wait(keys, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return below_->add(key, delta);
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    return below_->compare_set(key, expected, desired);
  }
  bool erase(std::string_view key) override { return below_->erase(key); }
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix) override {
    return below_->keys(prefix);
  }

 protected:
  [[nodiscard]] Store& below() { return *below_; }

 private:
  std::shared_ptr<Store> below_;
};

}  // namespace lockstep
