// RoundStore: the store as the ranks of one round use it. A rank that waits there for one that will
// never come learns that the round has ended within a moment, and not at its deadline.
#pragma once

#include "store/forwarding_store.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

class RoundStore : public ForwardingStore {
 public:
  // `ended` gives the sentence of the round's end, once there is one. Any thread.
  RoundStore(std::shared_ptr<Store> below, std::function<std::optional<std::string>()> ended,
             std::int64_t round)
      : ForwardingStore(std::move(below)), ended_(std::move(ended)), round_(round) {}

  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;

 private:
  void wait_in_parts(Deadline deadline, const std::function<void(Deadline)>& wait);

  std::function<std::optional<std::string>()> ended_;
  std::int64_t round_;
};

}  // namespace lockstep
