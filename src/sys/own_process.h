// The process that created an object. A forked child has copies of its parent's objects but not the
// threads that they started, and shares kernel resources with the parent: mapped memory, sockets,
// eventfds. The child must not use such a copy, and its destruction must not change anything.
#pragma once

#include <atomic>
#include <memory>
#include <tuple>
#include <utility>

#include <sys/types.h>

namespace lockstep::sys {

// Returns getpid() without a system call.
[[nodiscard]] inline pid_t own_process() noexcept;

namespace internal {

// The pid of this process, or 0 if it must be determined. Once initialised it lies in a page that
// is zeroed in a forked child.
extern std::atomic<std::atomic<pid_t>*> known_process;
[[nodiscard]] pid_t find_process() noexcept;

}  // namespace internal

pid_t own_process() noexcept {
  const pid_t known =
      internal::known_process.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  return known != 0 ? known : internal::find_process();
}

// A member for classes whose objects belong to the process that created them.
class ForkAware {
 public:
  [[nodiscard]] pid_t number() const { return process_; }
  [[nodiscard]] bool is_copy_of_parent() const { return own_process() != process_; }

 private:
  pid_t process_ = own_process();
};

// Deleter that does not touch a copy in a forked child: when the process forked, a thread of the
// parent may have been changing the object, holding its mutex, or waiting on its condition
// variable.
struct DeleteUnlessCopy {
  ForkAware process;

  template <typename T>
  void operator()(T* object) const {
    if (!process.is_copy_of_parent()) std::default_delete<T>()(object);
  }
};

// std::make_shared for objects that belong to this process.
template <typename T, typename... Arguments>
[[nodiscard]] std::shared_ptr<T> make_shared_of_process(Arguments&&... arguments) {
  return std::shared_ptr<T>(std::make_unique<T>(std::forward<Arguments>(arguments)...).release(),
                            DeleteUnlessCopy());
}

// Moves members into memory that is never freed, so that they are never destroyed. For destructors
// that run in a forked child (is_copy_of_parent()).
template <typename... Members>
void leave_undestroyed(Members&&... members) {
  auto kept = std::make_unique<std::tuple<Members...>>(std::forward<Members>(members)...);
  (void)kept.release();
}

}  // namespace lockstep::sys
