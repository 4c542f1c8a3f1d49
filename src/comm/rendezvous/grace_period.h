// GracePeriod: how long a rank that leaves a group waits for its peers, on all backends.
#pragma once

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <chrono>
#include <exception>

namespace lockstep::rendezvous {

// Make it a member of the object whose destructor waits: it counts exceptions from construction on.
class GracePeriod {
 public:
  // Returns true if an exception unwinds the stack. The rank then does not wait for peers, because
  // they wait to be informed of the exception.
  [[nodiscard]] bool is_by_exception() const { return std::uncaught_exceptions() > exceptions_; }
  // Returns the grace period for operations with the timeout `deadline`. Peers that are merely late
  // should be able to complete the posted operations, but a destructor must not block for minutes.
  [[nodiscard]] Duration length(Duration deadline) const {
    return is_by_exception() ? Duration::zero() : std::min<Duration>(deadline, longest);
  }

 private:
  static constexpr auto longest = std::chrono::seconds(30);
  int exceptions_ = std::uncaught_exceptions();  // exceptions in flight at construction
};

}  // namespace lockstep::rendezvous
