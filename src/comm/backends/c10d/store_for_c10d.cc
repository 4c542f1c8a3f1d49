// A c10d::Store on top of a Store.
#include "comm/backends/c10d/store_adapter.h"

#include <lockstep/base/error.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

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
  StoreForC10d(std::shared_ptr<lockstep::Store> store, std::string prefix,
               std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)), prefix_(std::move(prefix)) {}

  using c10d::Store::compareSet;
  using c10d::Store::set;

  // Store is thread-safe, so a clone may share it.
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<StoreForC10d>(store_, prefix_, timeout_);
  }

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->set(prefix_ + key, text_of(value));
  }

  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    return bytes_of(store_->compare_set(prefix_ + key, text_of(expected), text_of(desired)));
  }

  std::vector<std::uint8_t> get(const std::string& key) override {
    return bytes_of(store_->get(prefix_ + key, Deadline::after(timeout_)));
  }

  // NCCL fetches several keys at once if a group has more than a hundred ranks, without asking
  // whether the store supports it.
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    std::vector<std::vector<std::uint8_t>> values;
    for (const auto& key : keys) values.push_back(get(key));
    return values;
  }

  int64_t add(const std::string& key, int64_t value) override {
    return store_->add(prefix_ + key, value);
  }
  bool deleteKey(const std::string& key) override { return store_->erase(prefix_ + key); }

  bool check(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) {
      if (!store_->try_get(prefix_ + key)) return false;
    }
    return true;
  }

  int64_t getNumKeys() override { return static_cast<int64_t>(store_->keys(prefix_).size()); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    std::vector<std::string> full;
    for (const auto& key : keys) full.push_back(prefix_ + key);
    store_->wait(full, timeout == kNoTimeout ? Deadline::never() : Deadline::after(timeout));
  }

  bool hasExtendedApi() const override { return false; }

 private:
  std::shared_ptr<lockstep::Store> store_;
  std::string prefix_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> as_c10d_store(std::shared_ptr<Store> store, std::string prefix) {
  return c10::make_intrusive<StoreForC10d>(std::move(store), std::move(prefix),
                                           c10d::Store::kDefaultTimeout);
}

}  // namespace lockstep::c10d_backend
