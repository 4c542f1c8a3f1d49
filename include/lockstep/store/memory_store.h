// MemoryStore: a store inside one process, for tests and for ranks that are threads.
#pragma once

#include <memory>

#include <lockstep/store/store.h>

#pragma GCC visibility push(default)

namespace lockstep {

// Share one object among the threads through a pointer. A thread that waits for a key returns as
// soon as another thread sets the key.
class MemoryStore : public Store {
 public:
  MemoryStore();
  ~MemoryStore() override;

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key) override;
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep

#pragma GCC visibility pop
