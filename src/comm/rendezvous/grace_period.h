// GracePeriod: how long the end of a rank's part in a group may wait for peers, for all engines.
#pragma once

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <chrono>
#include <exception>

namespace lockstep::rendezvous {

// A member of what ends; made with it.
class GracePeriod {
 public:
  // Whether an exception unwinds the stack: then nobody is waited for, because the others wait for
  // the sentence that says so.
  [[nodiscard]] bool is_by_exception() const { return std::uncaught_exceptions() > exceptions_; }
  // For operations with such a deadline. Peers that are only late should find what was posted; but
  // a destructor is no place for a deadline of minutes.
  [[nodiscard]] Duration length(Duration deadline) const {
    return is_by_exception() ? Duration::zero() : std::min<Duration>(deadline, longest);
  }

 private:
  static constexpr auto longest = std::chrono::seconds(30);
  int exceptions_ = std::uncaught_exceptions();  // that were under way before
};

}  // namespace lockstep::rendezvous
