// GracePeriod: how long a rank that leaves a group may wait for its peers, for all engines.
#pragma once

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <chrono>
#include <exception>

namespace lockstep::rendezvous {

// A member of the object that ends; constructed with it.
class GracePeriod {
 public:
  // Returns true if an exception unwinds the stack. Then the rank waits for no peer, because the
  // peers wait for the message about the exception.
  [[nodiscard]] bool is_by_exception() const { return std::uncaught_exceptions() > exceptions_; }
  // Returns the grace period for operations with such a deadline. Peers that are only late should
  // find the posted operations, but a destructor must not block for minutes.
  [[nodiscard]] Duration length(Duration deadline) const {
    return is_by_exception() ? Duration::zero() : std::min<Duration>(deadline, longest);
  }

 private:
  static constexpr auto longest = std::chrono::seconds(30);
  int exceptions_ = std::uncaught_exceptions();  // exceptions in flight at construction
};

}  // namespace lockstep::rendezvous
