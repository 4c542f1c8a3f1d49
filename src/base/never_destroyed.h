// The value of a static variable that is never destroyed, because threads may still use it when the
// process ends.
#pragma once

#include <memory>
#include <utility>

namespace lockstep {

template <typename T>
class NeverDestroyed {
 public:
  template <typename... Args>
  explicit NeverDestroyed(Args&&... args) {
    std::construct_at(&value_, std::forward<Args>(args)...);
  }
  NeverDestroyed(const NeverDestroyed&) = delete;
  NeverDestroyed& operator=(const NeverDestroyed&) = delete;
  ~NeverDestroyed() {}

  [[nodiscard]] T& operator*() { return value_; }
  [[nodiscard]] const T& operator*() const { return value_; }

 private:
  union {
    T value_;
  };
};

template <typename T>
explicit NeverDestroyed(T) -> NeverDestroyed<T>;

}  // namespace lockstep
