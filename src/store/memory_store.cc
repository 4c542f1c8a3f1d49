#include <lockstep/store/memory_store.h>

#include "base/mutex.h"
#include "store/table.h"

#include <condition_variable>

namespace lockstep {

// `changed` is notified after every change that can make a key appear.
struct MemoryStore::State {
  Mutex mutex;
  std::condition_variable changed;
  store::Table table LOCKSTEP_GUARDED_BY(mutex);

  // Applies `change` to the table and wakes all threads that wait for keys.
  template <typename Change>
  auto apply(Change change) {
    Lock lock(mutex);
    auto result = change(table);
    lock.unlock();
    changed.notify_all();
    return result;
  }

  // Blocks until all keys are set; throws Timeout at the deadline.
  void wait_for(std::span<const std::string> keys, Deadline deadline, Lock& lock)
      LOCKSTEP_REQUIRES(mutex) {
    auto start = Clock::now();
    for (;;) {
      auto missing = table.missing(keys);
      if (missing.empty()) return;
      if (deadline.passed()) throw store::missing_keys(missing, Clock::now() - start);
      changed.wait_for(lock.native(), std::min<Duration>(deadline.left(), std::chrono::hours(1)));
    }
  }
};

MemoryStore::MemoryStore() : state_(std::make_unique<State>()) {}
MemoryStore::~MemoryStore() = default;

void MemoryStore::set(std::string_view key, std::string_view value) {
  store::check_key(key);
  store::check_value(key, value);
  state_->apply([&](store::Table& table) { return table.set(key, value), true; });
}

std::optional<std::string> MemoryStore::try_get(std::string_view key) {
  store::check_key(key);
  Lock lock(state_->mutex);
  const std::string* value = state_->table.find(key);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::string MemoryStore::get(std::string_view key, Deadline deadline) {
  store::check_key(key);
  std::string name(key);
  Lock lock(state_->mutex);
  state_->wait_for(std::span(&name, 1), deadline, lock);
  return *state_->table.find(key);
}

void MemoryStore::wait(std::span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) store::check_key(key);
  Lock lock(state_->mutex);
  state_->wait_for(keys, deadline, lock);
}

std::int64_t MemoryStore::add(std::string_view key, std::int64_t delta) {
  store::check_key(key);
  return state_->apply([&](store::Table& table) { return table.add(key, delta); });
}

std::string MemoryStore::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  store::check_key(key);
  store::check_value(key, desired);
  return state_->apply(
      [&](store::Table& table) { return table.compare_set(key, expected, desired); });
}

bool MemoryStore::erase(std::string_view key) {
  store::check_key(key);
  return state_->apply([&](store::Table& table) { return table.erase(key); });
}

std::vector<std::string> MemoryStore::keys(std::string_view prefix) {
  Lock lock(state_->mutex);
  return state_->table.keys(prefix);
}

}  // namespace lockstep
