// Which process made an object. A forked child has copies of its parent's objects, but not the
// threads that they started, and shares with the parent what the kernel keeps for both: mapped
// memory, sockets, eventfds. Such a copy must not be used, and its destruction must change nothing.
#pragma once

#include <atomic>
#include <memory>
#include <tuple>
#include <utility>

#include <sys/types.h>

namespace lockstep::sys {

// getpid(), without a system call.
[[nodiscard]] inline pid_t own_process() noexcept;

namespace internal {

// The number of this process, or 0 where it has to be found: in a page that a forked child finds
// zeroed, once there is one.
extern std::atomic<std::atomic<pid_t>*> known_process;
[[nodiscard]] pid_t find_process() noexcept;

}  // namespace internal

pid_t own_process() noexcept {
  const pid_t known =
      internal::known_process.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  return known != 0 ? known : internal::find_process();
}

// A member of what belongs to the process that makes it.
class OwnProcess {
 public:
  [[nodiscard]] pid_t number() const { return process_; }
  [[nodiscard]] bool is_copy_of_parent() const { return own_process() != process_; }

 private:
  pid_t process_ = own_process();
};

// Leaves a copy as it is: a thread of the parent may have been changing it when the process forked,
// may have held its mutex, or may have waited at its condition variable.
struct DeleteUnlessCopy {
  OwnProcess process;

  template <typename T>
  void operator()(T* object) const {
    if (!process.is_copy_of_parent()) std::default_delete<T>()(object);
  }
};

// std::make_shared for what belongs to this process.
template <typename T, typename... Arguments>
[[nodiscard]] std::shared_ptr<T> make_shared_of_process(Arguments&&... arguments) {
  return std::shared_ptr<T>(std::make_unique<T>(std::forward<Arguments>(arguments)...).release(),
                            DeleteUnlessCopy());
}

// For the destructor of an object that is a copy itself: its members are never destroyed.
template <typename... Members>
void leave_undestroyed(Members&&... members) {
  auto kept = std::make_unique<std::tuple<Members...>>(std::forward<Members>(members)...);
  (void)kept.release();
}

}  // namespace lockstep::sys
