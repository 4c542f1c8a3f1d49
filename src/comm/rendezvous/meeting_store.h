// MeetingStore: wraps a store for ranks that are about to meet. A rank that waits in it for a rank
// that will never come learns of that within a moment, not at its deadline.
#pragma once

#include "store/forwarding_store.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::rendezvous {

class MeetingStore : public ForwardingStore {
 public:
  // Called while a call waits, from any thread. Throws once the ranks have no reason to meet any
  // more; returns false if it will never throw.
  using Check = std::function<bool(Store& below)>;

  MeetingStore(std::shared_ptr<Store> below, Check check)
      : ForwardingStore(std::move(below)), check_(std::move(check)) {}

  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;

 private:
  void wait_in_parts(Deadline deadline, const std::function<void(Deadline)>& wait);

  const Check check_;
};

}  // namespace lockstep::rendezvous
