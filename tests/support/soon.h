// Returns a deadline for an event that must happen, long enough for a busy host.
#pragma once

#include <lockstep/base/deadline.h>

namespace lockstep::test {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

}  // namespace lockstep::test
