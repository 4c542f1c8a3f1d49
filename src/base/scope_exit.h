// ScopeExit: runs an action when a scope is left, also by an exception.
//
//   ScopeExit remove([&] { unlink(name); });
//   ...
//   remove.cancel();   // it went well
#pragma once

#include <utility>

namespace lockstep {

template <typename Action>
class [[nodiscard]] ScopeExit {
 public:
  explicit ScopeExit(Action action) : action_(std::move(action)) {}
  ScopeExit(const ScopeExit&) = delete;
  ScopeExit& operator=(const ScopeExit&) = delete;
  ~ScopeExit() {
    if (active_) action_();  // must not throw
  }
  void cancel() { active_ = false; }

 private:
  Action action_;
  bool active_ = true;
};

}  // namespace lockstep
