// PrefixStore: a part of another store, in which every key begins with a prefix that its users do
// not see. Groups that share one store each take their own part.
#pragma once

#include <memory>

#include <lockstep/store/store.h>

#pragma GCC visibility push(default)

namespace lockstep {

// As fast and as safe to share as the store below it, which it keeps alive. The prefix counts
// towards max_key_bytes, and errors name keys with it.
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
  // Without the prefix.
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix) override;

 private:
  [[nodiscard]] std::string full(std::string_view key) const;

  std::string prefix_;
  std::shared_ptr<Store> below_;
};

}  // namespace lockstep

#pragma GCC visibility pop
