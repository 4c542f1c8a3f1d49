// RoundStore: the store as the ranks of one round use it. A rank that waits there for one that will
// never come learns that the round has ended within a moment, and not at its deadline.
#pragma once

#include <lockstep/store/store.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace lockstep {

class RoundStore : public Store {
 public:
  // `ended` gives the sentence of the round's end, once there is one. Any thread.
  RoundStore(std::shared_ptr<Store> below, std::function<std::optional<std::string>()> ended,
             std::int64_t round)
      : below_(std::move(below)), ended_(std::move(ended)), round_(round) {}

  void set(std::string_view key, std::string_view value) override { below_->set(key, value); }
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key) override {
    return below_->try_get(key);
  }
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
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

 private:
  void wait_in_parts(Deadline deadline, const std::function<void(Deadline)>& wait);

  std::shared_ptr<Store> below_;
  std::function<std::optional<std::string>()> ended_;
  std::int64_t round_;
};

}  // namespace lockstep
