#include "comm/backends/c10d/store_adapter.h"

#include <lockstep/base/error.h>
#include <lockstep/store/prefix_store.h>

#include "base/format.h"
#include "store/table.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::c10d_backend {
namespace {

std::string_view text_of(const std::vector<std::uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

class StoreForC10d final : public c10d::Store {
 public:
  StoreForC10d(std::shared_ptr<lockstep::Store> store, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)) {}

  using c10d::Store::compareSet;
  using c10d::Store::set;

  // Store is thread-safe, so a clone may share it.
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<StoreForC10d>(store_, timeout_);
  }

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->set(key, text_of(value));
  }

  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    return bytes_of(store_->compare_set(key, text_of(expected), text_of(desired)));
  }

  std::vector<std::uint8_t> get(const std::string& key) override {
    return bytes_of(store_->get(key, Deadline::after(timeout_)));
  }

  // NCCL fetches several keys at once if a group has more than a hundred ranks, without asking
  // whether the store supports it.
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    std::vector<std::vector<std::uint8_t>> values;
    for (const auto& key : keys) values.push_back(get(key));
    return values;
  }

  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->erase(key); }

  bool check(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) {
      if (!store_->try_get(key)) return false;
    }
    return true;
  }

  int64_t getNumKeys() override { return static_cast<int64_t>(store_->keys("").size()); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout == kNoTimeout ? Deadline::never() : Deadline::after(timeout));
  }

  bool hasExtendedApi() const override { return false; }

 private:
  std::shared_ptr<lockstep::Store> store_;
};

class StoreFromC10d final : public lockstep::Store {
 public:
  explicit StoreFromC10d(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(std::string_view key, std::string_view value) override {
    store::check_value(key, value);
    reach([&] { store_->set(checked(key), std::string(value)); });
  }

  std::optional<std::string> try_get(std::string_view key) override {
    return reach([&]() -> std::optional<std::string> {
      if (!store_->check({checked(key)})) return std::nullopt;
      return store_->get_to_str(checked(key));
    });
  }

  std::string get(std::string_view key, Deadline deadline) override {
    wait(std::vector{std::string(key)}, deadline);
    return reach([&] { return store_->get_to_str(checked(key)); });
  }

  void wait(std::span<const std::string> keys, Deadline deadline) override {
    const auto begin = Clock::now();
    auto pause = std::chrono::milliseconds(1);
    for (;;) {
      auto missing = missing_of(keys);
      if (missing.empty()) return;
      if (deadline.passed()) throw store::missing_keys(missing, Clock::now() - begin);
      std::this_thread::sleep_for(std::min<Duration>(pause, deadline.left()));
      pause = std::min(pause * 2, std::chrono::milliseconds(50));
    }
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return reach([&] { return store_->add(checked(key), delta); });
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    store::check_value(key, desired);
    auto stands = reach([&] {
      return store_->compareSet(checked(key), std::string(expected), std::string(desired));
    });
    // If there is no such key, c10d returns `expected`.
    return stands == expected && expected != desired ? try_get(key).value_or("") : stands;
  }

  bool erase(std::string_view key) override {
    return reach([&] { return store_->deleteKey(checked(key)); });
  }

  std::vector<std::string> keys(std::string_view prefix) override {
    auto all = reach([&] { return store_->listKeys(); });
    std::vector<std::string> result;
    for (const auto& key : all) {
      // TCPStore lists its keys with an additional prefix.
      auto begin = key.find(prefix);
      if (begin == 0 || (begin == 1 && key.front() == '/')) result.push_back(key.substr(begin));
    }
    std::ranges::sort(result);
    return result;
  }

 private:
  [[nodiscard]] static std::string checked(std::string_view key) {
    store::check_key(key);
    return std::string(key);
  }

  std::vector<std::string> missing_of(std::span<const std::string> keys) {
    std::vector<std::string> missing;
    for (const auto& key : keys) {
      if (!reach([&] { return store_->check({checked(key)}); })) missing.push_back(key);
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
};

}  // namespace

c10::intrusive_ptr<c10d::Store> as_c10d_store(std::shared_ptr<Store> store, std::string prefix,
                                              Duration timeout) {
  return c10::make_intrusive<StoreForC10d>(
      std::make_shared<PrefixStore>(std::move(prefix), std::move(store)),
      std::chrono::floor<std::chrono::milliseconds>(timeout));
}

std::shared_ptr<Store> as_store(c10::intrusive_ptr<c10d::Store> store) {
  return std::make_shared<StoreFromC10d>(std::move(store));
}

}  // namespace lockstep::c10d_backend
