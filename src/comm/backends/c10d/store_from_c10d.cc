// A Store on top of a c10d::Store.
#include "base/format.h"
#include "base/text.h"
#include "comm/backends/c10d/store_adapter.h"

#include <lockstep/base/error.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::c10d_backend {
namespace {

class StoreFromC10d final : public Store {
 public:
  StoreFromC10d(c10::intrusive_ptr<c10d::Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(std::string_view key, std::string_view value) override {
    check_length(value);
    reach([&] { store_->set(full(key), std::string(value)); });
  }

  std::optional<std::string> try_get(std::string_view key) override {
    return reach([&]() -> std::optional<std::string> {
      if (!store_->check({full(key)})) return std::nullopt;
      return store_->get_to_str(full(key));
    });
  }

  std::string get(std::string_view key, Deadline deadline) override {
    wait(std::vector{std::string(key)}, deadline);
    return reach([&] { return store_->get_to_str(full(key)); });
  }

  void wait(std::span<const std::string> keys, Deadline deadline) override {
    auto pause = std::chrono::milliseconds(1);
    for (;;) {
      auto missing = missing_of(keys);
      if (missing.empty()) return;
      if (deadline.passed())
        throw Timeout(formatted("store: these keys never came: {}", join(missing)));
      std::this_thread::sleep_for(std::min<Duration>(pause, deadline.left()));
      pause = std::min(pause * 2, std::chrono::milliseconds(50));
    }
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return reach([&] { return store_->add(full(key), delta); });
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    check_length(desired);
    auto stands = reach(
        [&] { return store_->compareSet(full(key), std::string(expected), std::string(desired)); });
    // If there is no such key, c10d returns `expected`.
    return stands == expected && expected != desired ? try_get(key).value_or("") : stands;
  }

  bool erase(std::string_view key) override {
    return reach([&] { return store_->deleteKey(full(key)); });
  }

  std::vector<std::string> keys(std::string_view prefix) override {
    auto all = reach([&] { return store_->listKeys(); });
    std::vector<std::string> result;
    for (const auto& key : all) {
      // TCPStore lists its keys with an additional prefix.
      auto begin = key.find(prefix_ + std::string(prefix));
      if (begin == 0 || (begin == 1 && key.front() == '/'))
        result.push_back(key.substr(begin + prefix_.size()));
    }
    std::ranges::sort(result);
    return result;
  }

 private:
  [[nodiscard]] std::string full(std::string_view key) const {
    if (key.size() > max_key_bytes)
      throw BadInput(formatted("store: a key of {} bytes; at most {}", key.size(), max_key_bytes));
    return prefix_ + std::string(key);
  }

  static void check_length(std::string_view value) {
    if (value.size() > max_value_bytes)
      throw BadInput(
          formatted("store: a value of {} bytes; at most {}", value.size(), max_value_bytes));
  }

  std::vector<std::string> missing_of(std::span<const std::string> keys) {
    std::vector<std::string> missing;
    for (const auto& key : keys) {
      if (!reach([&] { return store_->check({full(key)}); })) missing.push_back(key);
    }
    return missing;
  }

  template <class Action>
  auto reach(Action action) -> decltype(action()) {
    try {
      return action();
    } catch (const c10::Error& error) {
      throw PeerLost(formatted("the store does not answer: {}", error.what_without_backtrace()));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> as_store(c10::intrusive_ptr<c10d::Store> store, std::string prefix) {
  return std::make_shared<StoreFromC10d>(std::move(store), std::move(prefix));
}

}  // namespace lockstep::c10d_backend
