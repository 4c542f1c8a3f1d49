// PrefixStore: a part of another store, in which every key begins with a prefix that callers do not
// see. Groups that share one store each use their own prefix.
#pragma once

#include <memory>

#include <lockstep/store/store.h>

#pragma GCC visibility push(default)

namespace lockstep {

// As fast and as thread-safe as the underlying store, which the PrefixStore keeps alive. The prefix
// counts towards max_key_bytes, and error messages name keys with their prefix.
class PrefixStore : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> below);

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key) override;
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;
  // Returns the keys without the store's own prefix.
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix) override;

 private:
  [[nodiscard]] std::string full(std::string_view key) const;

  std::string prefix_;
  std::shared_ptr<Store> below_;
};

}  // namespace lockstep

#pragma GCC visibility pop
